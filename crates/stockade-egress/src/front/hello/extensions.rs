//! The extensions of a ClientHello, as far as they say where it goes.

use std::collections::BTreeSet;

use stockade_policy::network::Name;

use super::{BadHello, Bytes};
use crate::front::host_name;

const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;
/// RFC 9849.
const ENCRYPTED_CLIENT_HELLO: u16 = 0xFE0D;
/// The drafts before it that were in use: ESNI, and ECH up to draft 12.
const ENCRYPTED_BEFORE: std::ops::RangeInclusive<u16> = 0xFE08..=0xFE0C;
const ENCRYPTED_SERVER_NAME: u16 = 0xFFCE;

const HOST_NAME: u8 = 0;

#[derive(Default)]
pub struct Extensions {
    pub server_name: Option<Name>,
    pub alpn: Vec<Vec<u8>>,
    pub ech: bool,
    pub versions: Option<Vec<u16>>,
}

impl Extensions {
    pub fn parse(bytes: &[u8]) -> Result<Self, BadHello> {
        let mut bytes = Bytes(bytes);
        let mut found = Self::default();
        let mut seen = BTreeSet::new();
        while !bytes.is_empty() {
            let kind = bytes.number()?;
            let data = bytes.long_list()?;
            // RFC 8446 §4.2 forbids it; readers differ in which one they take.
            if !seen.insert(kind) {
                return Err(BadHello::RepeatedExtension);
            }
            match kind {
                SERVER_NAME => found.server_name = Some(parse_server_name(data)?),
                ALPN => found.alpn = parse_alpn(data)?,
                SUPPORTED_VERSIONS => found.versions = Some(parse_versions(data)?),
                ENCRYPTED_CLIENT_HELLO | ENCRYPTED_SERVER_NAME => found.ech = true,
                other => found.ech |= ENCRYPTED_BEFORE.contains(&other),
            }
        }
        Ok(found)
    }
}

/// Exactly one name, of the only type there is; addresses and a final dot are
/// forbidden by RFC 6066 §3.
fn parse_server_name(data: &[u8]) -> Result<Name, BadHello> {
    let mut data = Bytes(data);
    let mut list = Bytes(data.long_list()?);
    let kind = list.byte()?;
    let text = list.long_list()?;
    if !data.is_empty() {
        return Err(BadHello::Malformed);
    }
    if kind != HOST_NAME || !list.is_empty() || text.ends_with(b".") {
        return Err(BadHello::ServerName);
    }
    host_name(text).ok_or(BadHello::ServerName)
}

fn parse_alpn(data: &[u8]) -> Result<Vec<Vec<u8>>, BadHello> {
    let mut data = Bytes(data);
    let mut list = Bytes(data.long_list()?);
    let mut protocols = Vec::new();
    while !list.is_empty() {
        protocols.push(list.short_list()?.to_vec());
    }
    if !data.is_empty() || protocols.is_empty() || protocols.iter().any(Vec::is_empty) {
        return Err(BadHello::Malformed);
    }
    Ok(protocols)
}

fn parse_versions(data: &[u8]) -> Result<Vec<u16>, BadHello> {
    let mut data = Bytes(data);
    let mut list = Bytes(data.short_list()?);
    let mut versions = Vec::new();
    while !list.is_empty() {
        versions.push(list.number()?);
    }
    if !data.is_empty() || versions.is_empty() {
        return Err(BadHello::Malformed);
    }
    Ok(versions)
}
