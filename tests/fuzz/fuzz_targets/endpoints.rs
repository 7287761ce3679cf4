#![no_main]

#[path = "../../fuzz_bodies/endpoints/mod.rs"]
mod endpoints;
#[path = "../../support/mod.rs"]
mod support;

libfuzzer_sys::fuzz_target!(|data: &[u8]| endpoints::endpoints(data));
