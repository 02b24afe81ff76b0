//! Credentials of one layer: bindings from what is written.

use super::{Builder, one, said, target, values};
use crate::document::List;
use crate::network::rules::{Attach, Binding, Mode, Source};
use crate::plan::Rule;
use crate::problem::{Fault, Located, Place};
use crate::validate::{Item, Said};
use crate::written::{WrittenCredential, WrittenPlace, WrittenSource};

/// The shortest time for which AWS gives keys.
const AWS_SECONDS: u64 = 900;

impl Builder<'_> {
    pub(super) fn credentials(&mut self, list: &List<WrittenCredential>) -> Said<Binding> {
        let mut items: Vec<Item<Binding>> = Vec::new();
        for (index, located) in list.as_ref()?.iter().enumerate() {
            let key = "credential";
            let item = self.rules.item(key, format!("{key}[{index}]"), located, ());
            let Some(value) =
                self.binding(item.rule.clone(), &located.value, located.place.as_ref())
            else {
                continue;
            };
            if let Some(twin) = items.iter().find(|other| other.value.name == value.name) {
                let fault = Fault::new(
                    "name-twice",
                    format!("a credential is called \"{}\" already", value.name),
                )
                .help(format!("the other one is {}", twin.rule.origin));
                self.problems
                    .push(fault.at(self.layer, located.place.as_ref()));
            }
            items.push(Item {
                value,
                rule: item.rule,
                place: item.place,
            });
        }
        Some(items)
    }

    fn binding(
        &mut self,
        rule: Rule,
        written: &WrittenCredential,
        place: Option<&Place>,
    ) -> Option<Binding> {
        let (mode, form) = match (&written.attach, &written.replace) {
            (Some(attach), _) => (Mode::Attach, form(&attach.value)?),
            (None, Some(replace)) => (Mode::Replace, form(&replace.value)?),
            (None, None) => return None,
        };
        let plaintext = said(&written.plaintext);
        let ports = match (values(&written.ports), plaintext) {
            (ports, false) if ports.is_empty() => vec![(443, 443)],
            (ports, _) => ports,
        };
        Some(Binding {
            rule,
            name: one(&written.name)?,
            source: self.source(&written.from.as_ref()?.value, place)?,
            host: target(&written.host, &None)?,
            ports,
            methods: values(&written.methods),
            paths: values(&written.paths),
            mode,
            form,
            variable: one(&written.variable),
            scrub: one(&written.scrub).unwrap_or(true),
            plaintext,
            expires_unix: one(&written.expires),
        })
    }

    fn source(&mut self, written: &WrittenSource, place: Option<&Place>) -> Option<Source> {
        if let Some(variable) = one(&written.env) {
            return Some(Source::Env { variable });
        }
        if let Some(path) = &written.file {
            let path = self.path(&path.value, path.place.as_ref().or(place))?;
            return Some(Source::File { path });
        }
        if let Some(name) = one(&written.keyring) {
            return Some(Source::Keyring { name });
        }
        if written.command.is_some() {
            return Some(Source::Command {
                argv: values(&written.command),
            });
        }
        self.minted(written, place)
    }

    fn minted(&mut self, written: &WrittenSource, place: Option<&Place>) -> Option<Source> {
        if let Some(oauth2) = written.oauth2.as_ref().map(|located| &located.value) {
            return Some(Source::OAuth2 {
                token_url: one(&oauth2.token_url)?,
                client_id: one(&oauth2.client_id)?,
                client_secret: self.nested(&oauth2.client_secret, place),
                refresh_token: self.nested(&oauth2.refresh_token, place),
                scopes: values(&oauth2.scopes),
            });
        }
        if let Some(app) = written.github_app.as_ref().map(|located| &located.value) {
            return Some(Source::GitHubApp {
                api_url: one(&app.api_url).unwrap_or_else(|| "https://api.github.com".to_owned()),
                app_id: one(&app.app_id)?,
                installation_id: one(&app.installation_id)?,
                private_key: self.nested(&app.private_key, place)?,
                repositories: values(&app.repositories),
                permissions: app.permissions.clone().unwrap_or_default(),
            });
        }
        let sts = &written.aws_sts.as_ref()?.value;
        let region = one(&sts.region)?;
        Some(Source::AwsSts {
            endpoint: one(&sts.endpoint)
                .unwrap_or_else(|| format!("https://sts.{region}.amazonaws.com")),
            region,
            access_key_id: self.nested(&sts.access_key_id, place)?,
            secret_access_key: self.nested(&sts.secret_access_key, place)?,
            role: one(&sts.role)?,
            policy: one(&sts.policy),
            seconds: one(&sts.duration_seconds).unwrap_or(AWS_SECONDS),
        })
    }

    fn nested(
        &mut self,
        written: &Option<Located<WrittenSource>>,
        place: Option<&Place>,
    ) -> Option<Box<Source>> {
        let written = written.as_ref()?;
        self.source(&written.value, place).map(Box::new)
    }
}

fn form(place: &WrittenPlace) -> Option<Attach> {
    if let Some(name) = one(&place.header) {
        let format = one(&place.format).unwrap_or_else(|| "{}".to_owned());
        return Some(Attach::Header { name, format });
    }
    if let Some(user) = one(&place.basic) {
        return Some(Attach::Basic { user });
    }
    if let Some(name) = one(&place.query) {
        return Some(Attach::Query { name });
    }
    if let Some(name) = one(&place.form) {
        return Some(Attach::Form { name });
    }
    if let Some(pointer) = one(&place.json) {
        return Some(Attach::Json { pointer });
    }
    if let Some(sigv4) = &place.sigv4 {
        return Some(Attach::SigV4 {
            region: one(&sigv4.value.region),
            service: one(&sigv4.value.service),
        });
    }
    said(&place.path).then_some(Attach::Path)
}
