//! Wall-clock benchmarks of the sans-IO core: `cargo bench --bench endpoint`.
#![allow(missing_docs, clippy::unwrap_used, reason = "benchmark")]

#[path = "common/mod.rs"]
mod common;

use std::hint::black_box;

use common::Pair;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use spindrift::wire::icrc;

/// A write from posting to completion over a wire without delay: protocol, copy and CRC, both sides on one core.
fn writes(c: &mut Criterion) {
    let mut group = c.benchmark_group("write");
    for size in [8_u32, 4096, 65_536, 1 << 20] {
        for crc in [true, false] {
            let mut pair = Pair::new(4096, crc, 1 << 20);
            let wr = pair.write(size);
            group.throughput(Throughput::Bytes(size.into()));
            let name = if crc { "icrc" } else { "no-icrc" };
            group.bench_function(BenchmarkId::new(name, size), |b| {
                b.iter(|| {
                    pair.a.endpoint.post_send(pair.now, pair.qa, black_box(wr)).unwrap();
                    pair.settle(64);
                    assert_eq!(pair.a.completions(), 1);
                });
            });
        }
    }
    group.finish();
}

/// The baseline: what a core can do at best, memory copy plus CRC of the same bytes.
fn baseline(c: &mut Criterion) {
    let mut group = c.benchmark_group("baseline");
    let from = vec![0x5a_u8; 4096];
    let mut to = vec![0_u8; 4096];
    group.throughput(Throughput::Bytes(4096));
    group.bench_function("copy-and-crc-4096", |b| {
        b.iter(|| {
            to.copy_from_slice(black_box(&from));
            black_box(crc32fast::hash(black_box(&to)))
        });
    });
    let head = [0x60_u8; 48 + 36];
    group.bench_function("icrc-4096", |b| b.iter(|| icrc::compute(black_box(&head), black_box(&from), &[])));
    group.finish();
}

criterion_group!(benches, writes, baseline);
criterion_main!(benches);
