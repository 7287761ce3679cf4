#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| spindrift_ibverbs::fuzz::control(data));
