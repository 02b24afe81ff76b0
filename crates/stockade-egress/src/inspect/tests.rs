//! The inspector between real clients and real origins, on the loopback.

mod messages;
mod support;
mod trust;
