#![no_main]

#[allow(dead_code, reason = "each target takes one of the bodies")]
#[path = "../../fuzz_bodies/mod.rs"]
mod fuzz_bodies;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_bodies::frame(data));
