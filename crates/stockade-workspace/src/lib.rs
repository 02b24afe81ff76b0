//! What a run does to a work tree, and how it is kept visible and reversible.
//!
//! Nothing here starts a sandbox or knows the network. Paths are bytes; every
//! file of the tree is reached through descriptors and without following a
//! link out of it, because whoever wrote the tree may be hostile.

pub mod apply;
pub mod change;
pub mod diff;
pub mod holds;
pub mod journal;
pub mod merge;
pub mod namer;
mod renames;
pub mod stack;
mod text;
pub mod tree;
pub mod unified;
