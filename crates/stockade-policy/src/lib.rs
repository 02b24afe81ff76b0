//! Policy, decisions and plans of Stockade, as pure values.
//!
//! Data flows one way: a document is parsed and validated into a policy,
//! policy and [`facts`] are compiled into a [`plan`], and the plan is lowered
//! into what the kernel understands. Nothing here reads a file, a clock or the
//! environment: the caller hands all of it in as values, so the same input
//! always gives the same plan and the same digest.

pub mod caches;
pub mod compile;
mod containment;
pub mod credentials;
pub mod decide;
mod defaults;
pub mod digest;
pub mod document;
pub mod explain;
pub mod facts;
pub mod git;
pub mod git_config;
pub mod guarantee;
pub mod guard;
mod keys;
pub mod landlock;
pub mod merge;
pub mod network;
pub mod path;
pub mod plan;
pub mod policy;
pub mod presets;
pub mod problem;
pub mod runtimes;
pub mod schema;
pub mod seatbelt;
pub mod seccomp;
pub mod sets;
pub mod validate;
pub mod value;
pub mod written;
