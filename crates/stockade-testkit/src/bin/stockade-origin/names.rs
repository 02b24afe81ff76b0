//! The resolver of the tests' internet; answers from `zone.json`, which a test
//! may replace at any time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;

use hickory_proto::op::{Message, MessageType, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UdpSocket};

use crate::World;

/// Aliases that are followed in one answer.
const ALIASES_MAX: usize = 8;

thread_local! {
    /// How often each name with a sequence was asked for.
    static ASKED: RefCell<HashMap<String, usize>> = RefCell::new(HashMap::new());
}

pub async fn serve_udp(world: Rc<World>, socket: UdpSocket) {
    let mut buffer = [0u8; 4096];
    while let Ok((length, peer)) = socket.recv_from(&mut buffer).await {
        if let Some(answer) = answer(&world, &buffer[..length]) {
            let _gone = socket.send_to(&answer, peer).await.is_err();
        }
    }
}

pub async fn serve_tcp(world: Rc<World>, listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let world = world.clone();
        tokio::task::spawn_local(async move {
            while let Ok(length) = stream.read_u16().await {
                let mut query = vec![0u8; length.into()];
                if stream.read_exact(&mut query).await.is_err() {
                    return;
                }
                let Some(answer) = answer(&world, &query) else {
                    return;
                };
                let length = u16::try_from(answer.len()).unwrap_or(u16::MAX);
                if stream.write_u16(length).await.is_err()
                    || stream.write_all(&answer).await.is_err()
                {
                    return;
                }
            }
        });
    }
}

fn answer(world: &World, query: &[u8]) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).ok()?;
    let question = query.queries.first()?.clone();
    let name = question
        .name()
        .to_ascii()
        .trim_end_matches('.')
        .to_ascii_lowercase();
    world.note(json!({ "kind": "dns", "name": name, "type": question.query_type().to_string() }));
    let zone = std::fs::read_to_string(world.directory.join("zone.json")).ok()?;
    let zone: Value = serde_json::from_str(&zone).ok()?;
    let mut reply = Message::response(query.metadata.id, query.metadata.op_code);
    reply.metadata.message_type = MessageType::Response;
    reply.metadata.recursion_desired = query.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    reply.add_query(question.clone());
    let mut current = name;
    for _ in 0..ALIASES_MAX {
        let Some(entry) = zone.get(&current) else {
            reply.metadata.response_code = ResponseCode::NXDomain;
            break;
        };
        let owner = Name::from_ascii(format!("{current}.")).ok()?;
        if let Some(target) = entry["alias"].as_str() {
            let target_name = Name::from_ascii(format!("{target}.")).ok()?;
            reply.add_answer(Record::from_rdata(
                owner,
                1,
                RData::CNAME(CNAME(target_name)),
            ));
            current = target.to_owned();
            continue;
        }
        for address in addresses(&current, entry) {
            let data = match (address, question.query_type()) {
                (IpAddr::V4(address), RecordType::A) => RData::A(A(address)),
                (IpAddr::V6(address), RecordType::AAAA) => RData::AAAA(AAAA(address)),
                _ => continue,
            };
            reply.add_answer(Record::from_rdata(owner.clone(), 1, data));
        }
        break;
    }
    reply.to_vec().ok()
}

fn addresses(name: &str, entry: &Value) -> Vec<IpAddr> {
    let list = match entry["sequence"].as_array() {
        None => &entry["addresses"],
        Some(sequence) => {
            let turn = ASKED.with_borrow_mut(|asked| {
                let count = asked.entry(name.to_owned()).or_default();
                *count += 1;
                *count - 1
            });
            &sequence[turn.min(sequence.len().saturating_sub(1))]
        }
    };
    let list = list.as_array().into_iter().flatten();
    list.filter_map(|address| address.as_str()?.parse().ok())
        .collect()
}
