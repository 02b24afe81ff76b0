//! The inspector between real clients and real origins, on the loopback.

mod carried;
mod clients;
mod messages;
#[expect(
    clippy::disallowed_methods,
    reason = "clients and origins of the tests"
)]
mod support;
mod trust;
