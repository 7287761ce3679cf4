//! The verbs API.

pub mod exchange;
