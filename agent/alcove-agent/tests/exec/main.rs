//! Commands: how they start, what they say, how they end.

#[path = "../support/mod.rs"]
mod support;

mod ending;
mod input;
mod output;
mod starting;
mod users;
