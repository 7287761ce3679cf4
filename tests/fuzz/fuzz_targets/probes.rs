#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    spindrift_agentd::fuzz::probes(data);
});
