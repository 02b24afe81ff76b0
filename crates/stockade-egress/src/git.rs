//! Git on the way out: what an operation does is read from the protocol.
//!
//! Over HTTPS, [`smart_http`] says what a request is and [`push`] holds a push
//! back until its commands are permitted and its pack is searched for bound
//! secrets. Over SSH, [`ssh`] ends the connection here, so that the same is
//! true of it. [`agent`] lends the host's ssh agent, key by key. Which
//! operation is permitted is decided elsewhere (`stockade_policy`); sending
//! the HTTP requests on is left to the HTTP service.
//!
//! What cannot be seen: a secret that was changed before it was committed
//! (encrypted, reversed, cut into pieces), and the parts of an object that a
//! delta takes from an object that the server has already.

pub mod agent;
pub mod commands;
pub mod history;
pub mod known_hosts;
pub mod needles;
pub mod pack;
pub mod packet;
pub mod push;
pub mod report;
pub mod repository;
pub mod smart_http;
pub mod spool;
pub mod ssh;
