//! The way out of one sandbox: proxy, names, TLS, credentials, budgets.
//!
//! One process of this code serves one sandbox, from outside. Which sandbox a
//! connection comes from is known by the listener that accepted it. It knows
//! nothing of the file system half of a plan.

pub mod asks;
pub mod audit;
pub mod budget;
pub mod confine;
pub mod context;
pub mod control;
pub mod converse;
pub mod credential;
pub mod dial;
pub mod explicit;
pub mod front;
pub mod git;
pub mod git_ssh;
pub mod ingress;
pub mod inspect;
pub mod metrics;
pub mod names;
pub mod offers;
pub mod proxy_token;
pub mod refusal;
pub mod replay;
pub mod resolve;
pub mod secret;
pub mod self_test;
pub mod serve;
pub mod services;
pub mod stub;
pub mod transparent;
pub mod tunnel;
pub mod wire;
