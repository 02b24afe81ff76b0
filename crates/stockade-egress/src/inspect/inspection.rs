//! What the inspected connections of one sandbox share: its authority, its
//! secrets, and whom to believe about origins.
//!
//! Made from the set-up before the process is confined; a reload replaces the
//! secrets and keeps the rest, because programs inside trust one certificate.

use std::cell::RefCell;
use std::rc::Rc;

use stockade_policy::network::NetworkPlan;
use stockade_policy::network::judge::Denial;

use super::authority::{Authority, Scope};
use super::fetch::Fetcher;
use super::roots::RootPlaces;
use super::tls::Origins;
use crate::credential::{Fetch, Vault};
use crate::git::needles::Needles;
use crate::git::spool::{ROOM_BYTES, Room};
use crate::wire::{SecretSource, SetUp};

/// Shared by all conversations of one sandbox.
pub struct Inspection {
    pub origins: Origins,
    /// `None` where nothing is inspected.
    pub authority: Option<Authority>,
    pub room: Room,
    secrets: RefCell<Secrets>,
    /// Mints secrets; to be told of the context once there is one.
    pub fetcher: Rc<Fetcher>,
}

/// What the engine is told when the set-up is understood.
pub struct Announced {
    /// The authority's certificate, in PEM.
    pub authority: Option<Vec<u8>>,
    /// Variables to set inside, with placeholders.
    pub placeholders: Vec<(String, String)>,
}

#[derive(Clone)]
struct Secrets {
    vault: Rc<Vault>,
    /// Of what was given.
    needles: Needles,
}

/// Secrets of a reload, checked and not yet in force.
pub struct Replacement(Secrets);

impl Inspection {
    /// Takes the secrets out of the set-up. An error refuses the run.
    pub fn new(set_up: &mut SetUp) -> Result<(Self, Announced), String> {
        let fetcher = Rc::new(Fetcher::default());
        let secrets = Secrets::new(set_up, Rc::clone(&fetcher), None)?;
        let plan = &set_up.network;
        let (authority, pem) = match plan.inspects() {
            false => (None, None),
            true => {
                let made = Authority::new(&set_up.run, Scope::of(plan));
                let (authority, pem) = made.map_err(|error| error.to_string())?;
                (Some(authority), Some(pem.into_bytes()))
            }
        };
        let announced = Announced {
            authority: pem,
            placeholders: secrets.vault.placeholders(),
        };
        let places = RootPlaces::new(
            set_up.root_file.as_deref(),
            set_up.root_directory.as_deref(),
            &plan.roots,
        );
        let inspection = Self {
            origins: Origins::new(places),
            authority,
            room: Room::new(ROOM_BYTES),
            secrets: RefCell::new(secrets),
            fetcher,
        };
        Ok((inspection, announced))
    }

    /// The secrets in force.
    pub fn vault(&self) -> Rc<Vault> {
        Rc::clone(&self.secrets.borrow().vault)
    }

    /// What must be in no pack that is pushed from now on: what was given, and
    /// what was minted of it until now.
    pub fn needles(&self) -> Result<Needles, Denial> {
        let Secrets { vault, needles } = self.secrets.borrow().clone();
        Ok(needles.and(vault.secrets()?.into()))
    }

    /// Checks the secrets of a reload, and that what it inspects is covered
    /// by the certificate that programs inside trust already.
    pub fn prepare(&self, set_up: &mut SetUp) -> Result<Replacement, String> {
        self.check_scope(&set_up.network)?;
        let previous = self.vault();
        let secrets = Secrets::new(set_up, Rc::clone(&self.fetcher), Some(&previous))?;
        if secrets.vault.placeholders() != previous.placeholders() {
            return Err(
                "the policy now has other placeholders than were set inside; start a new run"
                    .to_owned(),
            );
        }
        Ok(Replacement(secrets))
    }

    /// Puts the secrets of a reload in force.
    pub fn replace(&self, Replacement(secrets): Replacement) {
        self.secrets.replace(secrets);
    }

    fn check_scope(&self, plan: &NetworkPlan) -> Result<(), String> {
        if !plan.inspects() {
            return Ok(());
        }
        let covered = match &self.authority {
            Some(authority) => authority.scope().covers_all(&Scope::of(plan)),
            None => false,
        };
        match covered {
            true => Ok(()),
            false => Err(
                "the policy now inspects hosts that the certificate inside does not cover; \
                 start a new run"
                    .to_owned(),
            ),
        }
    }
}

impl Secrets {
    fn new(
        set_up: &mut SetUp,
        fetcher: Rc<Fetcher>,
        previous: Option<&Vault>,
    ) -> Result<Self, String> {
        let sources = std::mem::take(&mut set_up.secrets);
        let texts = sources.iter().flat_map(|source| match source {
            SecretSource::Value(text) => std::slice::from_ref(text),
            SecretSource::Mint(texts) => texts,
        });
        let needles = Needles::new(texts.map(|text| text.reveal().as_bytes()));
        let needles = needles.map_err(|error| error.to_string())?;
        let fetch: Rc<dyn Fetch> = fetcher;
        let vault = Vault::new(&set_up.network.credentials, sources, &fetch, previous)?;
        Ok(Self {
            vault: Rc::new(vault),
            needles,
        })
    }
}
