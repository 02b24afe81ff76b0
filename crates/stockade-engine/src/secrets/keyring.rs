//! The system keyring: the freedesktop.org Secret Service, as GNOME Keyring,
//! KWallet and KeePassXC offer it.
//!
//! Secrets cross the user's own session bus in the clear (algorithm `plain`):
//! whoever could listen there could also ask the keyring itself.

use std::time::{Duration, SystemTime};

use stockade_egress::secret::SecretText;

use super::bus::{Bus, BusError, Method, Reader, Writer};

const SERVICE: &str = "org.freedesktop.secrets";
const ROOT: &str = "/org/freedesktop/secrets";

/// Attributes by which our entries are found again.
const APPLICATION: (&str, &str) = ("application", "stockade");
const NAME: &str = "name";

/// A session of the keyring.
pub(super) struct Keyring {
    bus: Bus,
    session: String,
}

impl Keyring {
    /// `None` where there is no session bus or no keyring on it.
    pub(super) fn open() -> Result<Option<Self>, String> {
        let mut bus = match Bus::connect() {
            Ok(bus) => bus,
            Err(BusError::Absent) => return Ok(None),
            Err(error) => return Err(explain(error)),
        };
        let mut body = Writer::new();
        body.string("plain");
        body.signature("s");
        body.string("");
        let opened = bus.call(&service("OpenSession"), "sv", &body);
        let mut answer = match opened {
            Ok(answer) => answer,
            Err(BusError::Absent) => return Ok(None),
            Err(error) => return Err(explain(error)),
        };
        let session = match answer.signature().as_deref() {
            Some("s") => answer.string().and_then(|_| answer.string()),
            _ => None,
        };
        let session = session.ok_or_else(damaged)?;
        Ok(Some(Self { bus, session }))
    }

    pub(super) fn get(&mut self, name: &str) -> Result<Option<SecretText>, String> {
        let Some(item) = self.find(Some(name))?.into_iter().next() else {
            return Ok(None);
        };
        let mut body = Writer::new();
        body.string(&self.session);
        let method = on(&item, "org.freedesktop.Secret.Item", "GetSecret");
        let mut answer = self.bus.call(&method, "o", &body).map_err(explain)?;
        secret(&mut answer).ok_or_else(damaged).map(Some)
    }

    pub(super) fn set(&mut self, name: &str, value: &SecretText) -> Result<(), String> {
        let collection = self.default_collection()?;
        self.unlock(std::slice::from_ref(&collection))?;
        let mut body = Writer::new();
        body.array(8, |body| {
            body.align(8);
            body.string("org.freedesktop.Secret.Item.Label");
            body.signature("s");
            body.string(&format!("Stockade: {name}"));
            body.align(8);
            body.string("org.freedesktop.Secret.Item.Attributes");
            body.signature("a{ss}");
            attributes(body, Some(name));
        });
        body.align(8);
        body.string(&self.session);
        body.blob(b"");
        body.blob(value.reveal().as_bytes());
        body.string("text/plain; charset=utf8");
        body.boolean(true);
        let method = on(
            &collection,
            "org.freedesktop.Secret.Collection",
            "CreateItem",
        );
        let answer = self.bus.call(&method, "a{sv}(oayays)b", &body);
        let mut answer = answer.map_err(explain)?;
        let (item, prompt) = (answer.string(), answer.string());
        match (item.as_deref(), prompt.as_deref()) {
            (Some("/"), _) | (None, _) => Err(locked()),
            (Some(_), Some("/")) => Ok(()),
            _ => Err(locked()),
        }
    }

    pub(super) fn remove(&mut self, name: &str) -> Result<bool, String> {
        let items = self.find(Some(name))?;
        for item in &items {
            let method = on(item, "org.freedesktop.Secret.Item", "Delete");
            let mut answer = self
                .bus
                .call(&method, "", &Writer::new())
                .map_err(explain)?;
            if answer.string().as_deref() != Some("/") {
                return Err(locked());
            }
        }
        Ok(!items.is_empty())
    }

    /// Names, and when each was stored.
    pub(super) fn list(&mut self) -> Result<Vec<(String, Option<SystemTime>)>, String> {
        let mut entries = Vec::new();
        for item in self.find(None)? {
            let mut answer = self.property(&item, "Attributes")?;
            let found = match answer.signature().as_deref() {
                Some("a{ss}") => answer.dictionary().ok_or_else(damaged)?,
                _ => return Err(damaged()),
            };
            let Some((_, name)) = found.into_iter().find(|(key, _)| key == NAME) else {
                continue;
            };
            let mut answer = self.property(&item, "Modified")?;
            let seconds = match answer.signature().as_deref() {
                Some("t") => answer.u64(),
                _ => None,
            };
            let time = seconds.and_then(|seconds| {
                SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
            });
            entries.push((name, time));
        }
        Ok(entries)
    }

    /// Our items, unlocked.
    fn find(&mut self, name: Option<&str>) -> Result<Vec<String>, String> {
        let mut body = Writer::new();
        attributes(&mut body, name);
        let answer = self.bus.call(&service("SearchItems"), "a{ss}", &body);
        let mut answer = answer.map_err(explain)?;
        let mut items = answer.strings().ok_or_else(damaged)?;
        let locked = answer.strings().ok_or_else(damaged)?;
        self.unlock(&locked)?;
        items.extend(locked);
        Ok(items)
    }

    /// Without asking anybody: a question could appear on a screen that nobody
    /// watches.
    fn unlock(&mut self, objects: &[String]) -> Result<(), String> {
        if objects.is_empty() {
            return Ok(());
        }
        let mut body = Writer::new();
        body.array(4, |body| {
            for object in objects {
                body.string(object);
            }
        });
        let answer = self.bus.call(&service("Unlock"), "ao", &body);
        let mut answer = answer.map_err(explain)?;
        let unlocked = answer.strings().ok_or_else(damaged)?;
        match objects.iter().all(|object| unlocked.contains(object)) {
            true => Ok(()),
            false => Err(locked()),
        }
    }

    fn default_collection(&mut self) -> Result<String, String> {
        let mut body = Writer::new();
        body.string("default");
        let answer = self.bus.call(&service("ReadAlias"), "s", &body);
        let path = answer.map_err(explain)?.string().ok_or_else(damaged)?;
        match path.as_str() {
            "/" => Err("the keyring has no default collection".to_owned()),
            _ => Ok(path),
        }
    }

    fn property(&mut self, item: &str, name: &str) -> Result<Reader, String> {
        let mut body = Writer::new();
        body.string("org.freedesktop.Secret.Item");
        body.string(name);
        let method = on(item, "org.freedesktop.DBus.Properties", "Get");
        self.bus.call(&method, "ss", &body).map_err(explain)
    }
}

fn attributes(body: &mut Writer, name: Option<&str>) {
    body.array(8, |body| {
        let name = name.map(|name| (NAME, name));
        for (key, value) in std::iter::once(APPLICATION).chain(name) {
            body.align(8);
            body.string(key);
            body.string(value);
        }
    });
}

/// A structure of session, parameters, value and content type.
fn secret(answer: &mut Reader) -> Option<SecretText> {
    answer.align(8)?;
    answer.string()?;
    answer.blob()?;
    let value = answer.blob()?.to_vec();
    String::from_utf8(value).ok().map(SecretText::new)
}

fn service(name: &str) -> Method<'_> {
    on(ROOT, "org.freedesktop.Secret.Service", name)
}

fn on<'a>(path: &'a str, interface: &'a str, name: &'a str) -> Method<'a> {
    Method {
        destination: SERVICE,
        path,
        interface,
        name,
    }
}

fn explain(error: BusError) -> String {
    match error {
        BusError::Absent => "the keyring has gone".to_owned(),
        BusError::Refused(name) => format!("the keyring answers with {}", name.escape_default()),
        BusError::Failed(reason) => format!("the keyring cannot be reached: {reason}"),
    }
}

fn locked() -> String {
    "the keyring is locked".to_owned()
}

fn damaged() -> String {
    "an answer of the keyring is damaged".to_owned()
}
