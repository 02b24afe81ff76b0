//! Sandboxes that stay: started once, entered by many commands, ended when a
//! person says so.
//!
//! Such a sandbox is a run whose command is the agent. Plan, gate, evidence,
//! limits, way out and log are those of any run, and a supervisor of its own
//! outlives whoever started it; there is no daemon for all. Commands are
//! started by the agent, inside, and so are confined by what it is confined
//! by. No process enters from outside.
//!
//! - [`registry`]: which sandboxes there are, in the caller's state directory.
//! - `wire`: what callers and a supervisor say to each other.
//! - [`host`]: the supervisor's side, between its callers and the agent.
//! - [`detach`]: how a supervisor leaves its caller.
//! - [`call`], [`exec`], [`files`]: the callers' side.
//! - [`pool`]: sandboxes that wait, each for one command.
//! - `front`: the caller of a run whose command has a kernel of its own.

pub mod call;
mod client;
pub mod detach;
pub mod exec;
pub mod files;
pub(crate) mod front;
pub mod host;
mod link;
pub mod pool;
pub mod registry;
mod wire;

pub use self::registry::Name;
