use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::{Payload, Region, RegionError};

fn bytes(region: &Region) -> Vec<u8> {
    let mut all = vec![0; region.len()];
    region.read_at(0, &mut all).unwrap();
    all
}

#[test]
fn allocated_memory_is_zero_and_on_a_page() {
    let region = Region::alloc(10_000).unwrap();
    assert_eq!(region.iova() % 4096, 0);
    assert!(bytes(&region).iter().all(|&b| b == 0));
    assert_eq!(Region::alloc(0).unwrap_err(), RegionError::BadRange { addr: 0, len: 0 });
    assert!(matches!(Region::alloc_at(2, u64::MAX), Err(RegionError::BadRange { .. })));
    assert!(matches!(Region::alloc(usize::MAX), Err(RegionError::BadRange { .. })));
    assert!(matches!(Region::alloc(isize::MAX as usize), Err(RegionError::OutOfMemory { .. })));
}

#[test]
fn a_vector_and_raw_memory_become_regions() {
    let mut spare = Vec::with_capacity(100);
    spare.extend_from_slice(b"abc");
    let region = Region::from_vec(spare).unwrap();
    assert_eq!(bytes(&region), b"abc");
    assert!(Region::from_vec(Vec::new()).is_err());

    let mut backing = [0u8; 16];
    let base = backing.as_mut_ptr();
    // SAFETY: the array outlives the region, and is not looked at before the region is gone.
    let region = unsafe { Region::from_raw(base, 16) }.unwrap();
    assert_eq!(region.iova(), base as u64);
    region.write_at(4, b"raw").unwrap();
    drop(region);
    // SAFETY: as above.
    let region = unsafe { Region::from_raw_at(base, 16, 0x7000) }.unwrap();
    assert_eq!((region.iova(), region.offset_of(0x7004, 12)), (0x7000, Ok(4)));
    region.write_at(7, b"!").unwrap();
    drop(region);
    assert_eq!(&backing[4..8], b"raw!");
    // SAFETY: refused before they are used.
    let refused = unsafe {
        [
            Region::from_raw(std::ptr::null_mut(), 16),
            Region::from_raw(base, 0),
            Region::from_raw_at(base, 16, u64::MAX - 14),
        ]
    };
    assert!(refused.iter().all(Result::is_err), "{refused:?}");
}

#[test]
fn accessors_check_bounds() {
    let region = Region::alloc(100).unwrap();
    region.write_at(98, b"xy").unwrap();
    assert!(matches!(region.write_at(99, b"xy"), Err(RegionError::OutOfBounds { .. })));
    assert!(region.write_at(usize::MAX, b"xy").is_err());
    assert!(region.read_at(100, &mut []).is_ok() && region.write_at(100, &[]).is_ok());
    assert!(region.read_at(101, &mut []).is_err());
    region.fill(0, 100, 7).unwrap();
    assert!(region.fill(1, 100, 7).is_err());
    region.store(99, 8).unwrap();
    assert_eq!(region.load(99), Ok(8));
    assert!(region.load(100).is_err() && region.store(100, 1).is_err());
    let mut want = [7; 100];
    assert_eq!(region.first_difference(0, &want), Ok(Some(99)));
    want[99] = 8;
    assert_eq!(region.first_difference(0, &want), Ok(None));
    assert!(region.first_difference(1, &want).is_err());
    // SAFETY: nobody else has the region.
    unsafe {
        assert_eq!(region.view(1, 99).unwrap(), Some(&want[1..]));
        assert!(region.view(1, 100).is_err());
    }
}

#[test]
fn long_writes_and_fills_reach_every_byte() {
    let region = Region::alloc(5000).unwrap();
    let data: Vec<u8> = (0..4001_u32).map(|at| (at * 31 + at / 256) as u8).collect();
    region.fill(0, 5000, 0xEE).unwrap();
    region.write_at(77, &data).unwrap();
    let all = bytes(&region);
    assert_eq!(all[77..4078], data);
    assert!(all[..77].iter().chain(&all[4078..]).all(|&byte| byte == 0xEE));
    region.fill(1, 2500, 3).unwrap();
    let all = bytes(&region);
    assert!(all[0] == 0xEE && all[1..2501].iter().all(|&byte| byte == 3) && all[2501..4078] == data[2424..]);
}

#[test]
fn an_address_has_an_offset_only_with_all_of_its_bytes_inside() {
    let region = Region::alloc_at(64, 0x1000).unwrap();
    assert_eq!((region.offset_of(0x1000, 64), region.offset_of(0x1040, 0)), (Ok(0), Ok(64)));
    for (addr, len) in [(0xFFF, 1), (0x1000, 65), (0x1040, 1), (0x1041, 0), (0x1001, u64::MAX), (u64::MAX, 1)]
    {
        let error = RegionError::OutOfBounds { addr, len, region_addr: 0x1000, region_len: 64 };
        assert_eq!(region.offset_of(addr, len), Err(error));
    }
}

#[test]
fn a_virtual_region_has_a_length_and_no_bytes() {
    let region = Region::virtual_at(1 << 40, 0x1000).unwrap();
    assert!(region.is_virtual() && !Region::alloc(1).unwrap().is_virtual());
    region.write_at(1 << 39, b"forgotten").unwrap();
    assert!(region.write_at((1 << 40) - 8, b"too far!!").is_err());
    let mut out = [7; 9];
    region.read_at(1 << 39, &mut out).unwrap();
    assert_eq!((out, region.load(5)), ([0; 9], Ok(0)));
    let payload = region.payload(4096, 3000).unwrap();
    assert_eq!((payload.len(), payload.as_ptr()), (3000, None));
    let mut shown = 0;
    payload.for_each_chunk(|chunk| {
        assert!(chunk.iter().all(|&byte| byte == 0));
        shown += chunk.len();
    });
    assert_eq!(shown, 3000);
    // SAFETY: there are no bytes.
    assert_eq!(unsafe { region.view(0, 10) }, Ok(None));
}

#[test]
fn a_payload_reads_the_same_from_a_slice_and_from_a_region() {
    let data: Vec<u8> = (0..3000_u32).map(|at| (at * 13 + at / 256) as u8).collect();
    let region = Region::alloc(4000).unwrap();
    region.write_at(500, &data).unwrap();
    let shared = region.payload(500, 3000).unwrap();
    assert_eq!(shared.region().map(|(of, offset)| (of.iova(), offset)), Some((region.iova(), 500)));
    assert_eq!(shared.as_ptr().map(|at| at as u64), Some(region.iova() + 500));
    let own = Payload::from(&data);
    assert!(own.region().is_none() && own.as_ptr() == Some(data.as_ptr()));
    for payload in [shared, own] {
        assert_eq!((payload.len(), payload.is_empty(), payload.first()), (3000, false, Some(data[0])));
        let mut chunks = Vec::new();
        payload.for_each_chunk(|chunk| chunks.extend_from_slice(chunk));
        assert_eq!(chunks, data);
        for most in [0, 1, 2999, 3000, 3001] {
            let mut appended = b"before".to_vec();
            payload.append_to(&mut appended, most);
            assert_eq!((&appended[..6], &appended[6..]), (&b"before"[..], &data[..most.min(3000)]));
            let mut out = vec![0xEE; most];
            let count = most.min(3000);
            assert_eq!(payload.read(&mut out), count);
            assert!(out[..count] == data[..count] && out[count..].iter().all(|&byte| byte == 0xEE));
        }
    }
    for (offset, len) in [(0, 4001), (4000, 1), (4001, 0), (1, usize::MAX)] {
        assert!(region.payload(offset, len).is_err());
    }
    let none = region.payload(4000, 0).unwrap();
    assert!(none.is_empty() && none.first().is_none() && Payload::EMPTY.is_empty());
    none.for_each_chunk(|_| panic!("no bytes"));
    Payload::EMPTY.for_each_chunk(|_| panic!("no bytes"));
}

/// A memfd of `len` bytes.
fn memfd(len: u64) -> File {
    // SAFETY: the name is a C string; the descriptor is new and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(libc::memfd_create(c"region".as_ptr(), libc::MFD_CLOEXEC)) };
    let file = File::from(fd);
    file.set_len(len).unwrap();
    file
}

#[test]
fn two_mappings_of_one_file_are_the_same_bytes() {
    let file = memfd(3 * 4096);
    let map = |offset, len| Region::map_shared(file.as_fd(), offset, len);
    let (all, last) = (map(0, 3 * 4096).unwrap(), map(8192, 100).unwrap());
    all.write_at(8192, b"seen by both").unwrap();
    assert_eq!(last.first_difference(0, b"seen by both"), Ok(None));
    assert!(matches!(map(100, 10), Err(RegionError::Map { errno: libc::EINVAL, len: 10 })));
    assert!(matches!(map(0, 0), Err(RegionError::BadRange { .. })));
    assert!(matches!(map(1 << 63, 4096), Err(RegionError::BadRange { .. })));
    drop(file);
    last.store(99, 7).unwrap();
    assert_eq!(all.load(8192 + 99), Ok(7));
}

/// Few machines have huge pages set aside; without them, the error says what is missing.
#[test]
fn huge_pages_come_whole_or_not_at_all() {
    match Region::alloc_huge(5000) {
        Ok(region) => {
            assert!(region.len() >= 1 << 16 && region.len().is_power_of_two(), "{region:?}");
            region.write_at(region.len() - 3, b"end").unwrap();
        }
        Err(error) => assert!(matches!(error, RegionError::Map { errno: libc::ENOMEM, .. }), "{error}"),
    }
    assert!(matches!(Region::alloc_huge(0), Err(RegionError::BadRange { .. })));
    assert!(matches!(
        Region::alloc_huge(isize::MAX as usize),
        Err(RegionError::BadRange { .. } | RegionError::Map { .. })
    ));
}

/// Who sees the last byte of a write by acquire sees the whole of it, on every round.
#[test]
fn the_last_byte_of_a_write_is_seen_after_the_others() {
    const LENGTHS: [usize; 5] = [2, 8, 64, 129, 4096];
    let region = Region::alloc(4096).unwrap();
    let back = Region::alloc(1).unwrap();
    let writer = {
        let (region, back) = (Arc::clone(&region), Arc::clone(&back));
        move || {
            for round in 0..500_usize {
                let len = LENGTHS[round % LENGTHS.len()];
                region.write_at(4096 - len, &vec![1 + (round % 255) as u8; len]).unwrap();
                while back.load(0).unwrap() != 1 + (round % 255) as u8 {
                    std::hint::spin_loop();
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(writer);
        for round in 0..500_usize {
            let (len, mark) = (LENGTHS[round % LENGTHS.len()], 1 + (round % 255) as u8);
            while region.load(4095).unwrap() != mark {
                std::hint::spin_loop();
            }
            assert_eq!(region.first_difference(4096 - len, &vec![mark; len]), Ok(None), "round {round}");
            back.store(0, mark).unwrap();
        }
    });
}

/// What reads see while others write is any mixture of old and new bytes, and nothing else. `ThreadSanitizer`, which
/// `tools/sanitize.sh` runs this under, would report the first access that is not atomic.
#[test]
fn accesses_may_race() {
    let region = Region::alloc(4096).unwrap();
    std::thread::scope(|scope| {
        for mark in [0x11, 0x22] {
            let region = &region;
            scope.spawn(move || {
                for round in 0..200 {
                    region.write_at(round, &vec![mark; 3000]).unwrap();
                    region.fill(7, 500, mark).unwrap();
                    region.store(9, mark).unwrap();
                }
            });
        }
        let payload = region.payload(3, 4090).unwrap();
        let mut out = [0; 4096];
        for _ in 0..200 {
            region.read_at(0, &mut out).unwrap();
            payload.for_each_chunk(|chunk| out[..chunk.len()].copy_from_slice(chunk));
            assert!(out.iter().all(|byte| [0, 0x11, 0x22].contains(byte)));
            assert!([0, 0x11, 0x22].contains(&region.load(9).unwrap()));
        }
    });
}
