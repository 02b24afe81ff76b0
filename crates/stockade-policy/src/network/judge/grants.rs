//! The least that would allow something, as lines of a policy document.

pub(super) mod requests;

use std::net::IpAddr;

use super::git::{GitAction, GitOperation, Miss};
use super::request::RequestHead;
use crate::network::address::Network;
use crate::network::destination::{Destination, Host, Name};
use crate::network::rules::DEFAULT_PORTS;

/// One host with one port; an address needs a rule.
pub(super) fn destination(destination: &Destination) -> String {
    let port = destination.port();
    match destination.host() {
        Host::Name(name) if DEFAULT_PORTS.contains(&port) => self::name(name),
        Host::Name(name) => format!("[network]\nallow = [\"{name}:{port}\"]\n"),
        Host::Address(_) => rule(destination),
    }
}

pub(super) fn name(name: &Name) -> String {
    format!("[network]\nallow = [\"{name}\"]\n")
}

/// A named host at one private address.
pub(super) fn private(destination: &Destination, address: IpAddr) -> String {
    let network = Network::around(address, 128);
    format!("{}allow_private = [\"{network}\"]\n", rule(destination))
}

/// Exactly this method and path.
pub(super) fn request(destination: &Destination, request: &RequestHead<'_>) -> String {
    let mut lines = rule(destination);
    lines.push_str(&format!("methods = [{}]\n", quoted(request.method)));
    lines.push_str(&format!("paths = [{}]\n", quoted(&literal(request.path))));
    if request.upgrade_websocket {
        lines.push_str("websocket = true\n");
    }
    lines
}

pub(super) fn git(destination: &Destination, operation: &GitOperation<'_>, miss: &Miss) -> String {
    let repository = quoted(&literal(operation.repository));
    let mut lines = format!("[[network.git]]\nhost = \"{}\"\n", destination.host());
    lines.push_str(&match operation.action {
        GitAction::Read => format!("read = [{repository}]\n"),
        _ => format!("push = [{repository}]\n"),
    });
    match miss {
        Miss::Reference(name) => lines.push_str(&format!("refs = [{}]\n", quoted(&literal(name)))),
        Miss::Delete(name) => {
            lines.push_str(&format!(
                "refs = [{}]\ndelete = true\n",
                quoted(&literal(name))
            ));
        }
        Miss::Way if operation.over_ssh => {
            lines.push_str(&format!("ssh_port = {}\n", destination.port()));
        }
        _ => {}
    }
    lines
}

fn rule(destination: &Destination) -> String {
    let target = match destination.host() {
        Host::Name(name) => format!("host = \"{name}\""),
        Host::Address(address) => format!("cidr = \"{}\"", Network::around(*address, 128)),
    };
    let port = destination.port();
    let ports = match DEFAULT_PORTS.contains(&port) {
        true => String::new(),
        false => format!("ports = [{port}]\n"),
    };
    format!("[[network.rule]]\n{target}\n{ports}")
}

/// A star in the text would be a pattern; `*` matches one too.
fn literal(text: &str) -> String {
    let mut literal = text.to_owned();
    while literal.contains("**") {
        literal = literal.replace("**", "*");
    }
    literal
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
