//! The inspected way out: TLS ended here and begun again towards the origin,
//! each request judged, given its credentials and forwarded.
//!
//! What may be reached is decided by the policy's judge, secrets are kept and
//! taken out of responses by the vault, connections are made by the one
//! `dial`; this module is what stands between them. It has three doors:
//! [`forward::serve_tls`], [`forward::serve_plain`] and
//! [`forward::serve_proxy`].

mod activity;
pub mod authority;
mod body;
mod conversation;
pub mod environment;
mod exchange;
pub mod fetch;
pub mod forward;
mod frames;
mod gated;
pub mod graphql;
pub mod inspection;
mod message;
mod outgoing;
mod refusal;
pub mod roots;
mod tasks;
pub mod tls;
mod upstream;
mod websocket;

#[cfg(test)]
mod tests;
