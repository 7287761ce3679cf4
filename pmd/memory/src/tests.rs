use std::fs::File;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::crc::by_library as crc32;
use super::{Payload, Pieces, Region, RegionError};

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

/// Writing zeros to gigabytes takes seconds, and pages that nobody touches need not be there.
#[test]
fn long_regions_take_memory_page_by_page() {
    let resident = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let (before, len) = (resident(), 256 << 20);
    let region = Region::alloc(len).unwrap();
    assert_eq!(region.iova() % 4096, 0);
    assert_eq!([0, len / 2, len - 1].map(|at| region.load(at).unwrap()), [0; 3]);
    region.store(len - 1, 7).unwrap();
    assert_eq!(region.load(len - 1).unwrap(), 7);
    let grown = resident().saturating_sub(before);
    assert!(grown < len / 2, "{grown} bytes are there");
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
    for (len, state) in [(0, 5), (1, 0), (1023, 9), (1024, 7), (1025, 1), (3000, 0x1234_5678)] {
        let part = payload.first_bytes(len);
        assert_eq!(part.crc32(state), crc32(state, &vec![0; len]), "{len}");
    }
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
        assert_eq!(payload.crc32(0xabcd), crc32(0xabcd, &data));
        for at in [0, 1, 1500, 2999, 3000, 3001, usize::MAX] {
            let mut halves = Vec::new();
            let (front, back) = (payload.first_bytes(at), payload.skip(at));
            assert_eq!((front.len(), back.len()), (at.min(3000), 3000 - at.min(3000)));
            front.append_to(&mut halves, usize::MAX);
            back.append_to(&mut halves, usize::MAX);
            assert_eq!(halves, data, "{at}");
        }
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
    assert_eq!((none.crc32(3), Payload::EMPTY.crc32(3)), (3, 3));
}

#[test]
fn pieces_are_one_after_the_other() {
    let data: Vec<u8> = (0..100).collect();
    let region = Region::from_vec(data.clone()).unwrap();
    for cuts in
        [[0, 0, 0], [0, 0, 100], [10, 10, 10], [10, 60, 97], [0, 99, 99], [98, 99, 100], [100, 100, 100]]
    {
        let [a, b, c] = cuts;
        let rest = [
            region.payload(a, b - a).unwrap(),
            Payload::from(&data[b..c]),
            region.payload(c, 100 - c).unwrap(),
        ];
        let all = Pieces::new(&data[..a], &rest);
        assert_eq!((all.len(), all.is_empty(), all.front()), (100, false, &data[..a]));
        for len in [0, 1, 9, 10, 11, 60, 96, 97, 99, 100, 101] {
            let part = all.first_bytes(len);
            let len = len.min(100);
            assert_eq!((part.len(), part.is_empty(), part.front()), (len, len == 0, &data[..a.min(len)]));
            assert!(part.iter().all(|piece| !piece.is_empty()));
            let mut bytes = Vec::new();
            part.iter().for_each(|piece| piece.append_to(&mut bytes, usize::MAX));
            assert_eq!((&bytes, part.crc32(8)), (&data[..len].to_vec(), crc32(8, &data[..len])), "{cuts:?}");
            assert_eq!(all.without_last(100 - len).map(|part| part.len()), Some(len));
            match part.split_last::<4>() {
                Some((front, last)) => {
                    assert_eq!((front.len(), &last[..]), (len - 4, &data[len - 4..len]), "{cuts:?}");
                }
                None => assert!(len < 4),
            }
            match part.split_front(9) {
                Some((front, back)) => {
                    assert_eq!(
                        (front, back.len(), back.crc32(0)),
                        (&data[..9], len - 9, crc32(0, &data[9..len]))
                    );
                }
                None => assert!(len < 9 || a < 9),
            }
            // To where a packet says, and nowhere else.
            for target in [Region::alloc_at(120, 0x1000).unwrap(), region.clone()] {
                let mut expected = vec![0; target.len()];
                target.read_at(0, &mut expected).unwrap();
                if target.len() == 120 {
                    expected[7..7 + len].copy_from_slice(&data[..len]);
                    target.place(0x1007, &part).unwrap();
                }
                assert_eq!(target.first_difference(0, &expected).unwrap(), None, "{cuts:?} {len}");
                let beyond = target.iova() + (target.len() - len) as u64 + 1;
                assert!(target.place(beyond, &part).is_err());
                assert_eq!(target.first_difference(0, &expected).unwrap(), None, "{cuts:?} {len}");
            }
        }
        assert!(all.without_last(101).is_none());
    }
    let whole = Pieces::from(&data);
    assert_eq!((whole.front(), whole.split_last::<2>().unwrap().1), (&data[..], [98, 99]));
}

#[test]
fn pieces_of_virtual_regions_are_zeros_and_those_placed_there_are_forgotten() {
    let nowhere = Region::virtual_at(3000, 0x1000).unwrap();
    let rest = [nowhere.payload(0, 3000).unwrap()];
    let target = Region::from_vec(vec![7; 3002]).unwrap();
    target.place(target.iova() + 1, &Pieces::new(&[], &rest)).unwrap();
    assert_eq!(target.first_difference(0, &[&[7][..], &[0; 3000], &[7]].concat()).unwrap(), None);
    let rest = [target.payload(0, 3000).unwrap()];
    assert!(nowhere.place(0x1000, &Pieces::new(&[], &rest)).is_ok());
    assert!(nowhere.place(0x1001, &Pieces::new(&[], &rest)).is_err());
}

/// A source that overlaps its target garbles data at most.
#[test]
fn bytes_that_move_within_a_region_come_from_it() {
    for (from, to) in [(0, 1), (1, 0), (0, 500), (500, 0), (33, 0), (0, 33), (7, 7)] {
        let region = Region::from_vec((0..2000).map(|at| 1 + (at % 200) as u8).collect()).unwrap();
        let rest = [region.payload(from, 1000).unwrap()];
        region.place(region.iova() + to, &Pieces::new(&[], &rest)).unwrap();
        let mut bytes = [0; 2000];
        region.read_at(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| (1..=200).contains(byte)));
        let (before, after) = (to as usize, to as usize + 1000);
        let kept = |at: usize| bytes[at] == 1 + (at % 200) as u8;
        assert!((0..before).all(kept) && (after..2000).all(kept), "{from} {to}");
    }
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
    for (offset, len) in [(0, 3 * 4096 + 1), (8192, 4097), (3 * 4096, 1), (1 << 40, 1)] {
        let short = RegionError::FileTooShort { offset, len: len as u64, file_len: 3 * 4096 };
        assert_eq!(map(offset, len).unwrap_err(), short);
    }
    let zero = std::fs::OpenOptions::new().read(true).write(true).open("/dev/zero").unwrap();
    Region::map_shared(zero.as_fd(), 0, 4096).unwrap().store(4095, 1).unwrap();
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
            payload.crc32(0);
            payload.read(&mut out);
            assert!(out.iter().all(|byte| [0, 0x11, 0x22].contains(byte)));
            assert!([0, 0x11, 0x22].contains(&region.load(9).unwrap()));
        }
    });
}

#[test]
fn room_by_offset_is_room_by_address() {
    let region = Region::alloc_at(64, 0x1000).unwrap();
    for (offset, len) in [(0, 64), (0, 0), (64, 0), (5, 59), (63, 1)] {
        let (by_offset, by_address) =
            (region.room_at(offset, len).unwrap(), region.room(0x1000 + offset as u64, len).unwrap());
        assert_eq!((by_offset.len(), by_offset.is_empty()), (len, len == 0));
        assert_eq!((by_address.len(), by_address.is_empty()), (len, len == 0));
        region.fill(0, 64, 0).unwrap();
        by_offset.fill(&[1; 64]);
        let want: Vec<u8> = (0..64).map(|at| u8::from((offset..offset + len).contains(&at))).collect();
        assert_eq!(bytes(&region), want, "{len} bytes at {offset}");
    }
    for (offset, len) in [(0, 65), (64, 1), (65, 0), (1, usize::MAX), (usize::MAX, 1)] {
        let error = RegionError::OutOfBounds {
            addr: 0x1000_u64.saturating_add(offset as u64),
            len: len as u64,
            region_addr: 0x1000,
            region_len: 64,
        };
        assert_eq!(region.room_at(offset, len).unwrap_err(), error);
    }
}

/// Every part of pieces that are cut at every two positions, to the place given and nowhere else.
#[test]
fn any_part_of_pieces_can_be_placed() {
    const LEN: usize = 12;
    let data: Vec<u8> = (1..=LEN as u8).collect();
    let source = Region::from_vec(data.clone()).unwrap();
    let target = Region::alloc(LEN + 4).unwrap();
    for (a, b) in (0..=LEN).flat_map(|a| (a..=LEN).map(move |b| (a, b))) {
        let rest = [source.payload(a, b - a).unwrap(), Payload::from(&data[b..])];
        let all = Pieces::new(&data[..a], &rest);
        for whole in [all, all.first_bytes(LEN - 2)] {
            for (from, len) in (0..LEN + 2).flat_map(|from| (0..LEN + 2).map(move |len| (from, len))) {
                target.fill(0, LEN + 4, 0).unwrap();
                let part: Vec<u8> = data[..whole.len()].iter().copied().skip(from).take(len).collect();
                let placed = whole.place_part(from, target.room_at(1, len).unwrap());
                let mut want = vec![0; LEN + 4];
                want[1..=part.len()].copy_from_slice(&part);
                assert_eq!((placed, bytes(&target)), (part.len(), want), "{a} {b}: {len} from {from}");
            }
        }
    }
    assert_eq!(Pieces::from(&data).place_part(usize::MAX, target.room_at(0, 4).unwrap()), 0);
}

#[test]
fn counters_are_added_to_and_swapped() {
    let region = Region::from_vec(vec![0xEE; 24]).unwrap();
    region.store_u64(8, u64::MAX - 1).unwrap();
    assert_eq!(region.fetch_add(8, 1), Ok(u64::MAX - 1));
    assert_eq!(region.fetch_add(8, 5), Ok(u64::MAX), "it wraps");
    assert_eq!(region.load_u64(8), Ok(4));
    assert_eq!(region.compare_swap(8, 5, 9), Ok(4));
    assert_eq!(region.load_u64(8), Ok(4), "another value is left as it was");
    assert_eq!(region.compare_swap(8, 4, 0x0102_0304_0506_0708), Ok(4));
    let want = [&[0xEE; 8][..], &0x0102_0304_0506_0708_u64.to_ne_bytes(), &[0xEE; 8]].concat();
    assert_eq!(bytes(&region), want, "in the byte order of the host, and no other byte");
}

/// Each access of a counter at `offset`, which must all have the same outcome; a change sets it to 1.
fn counter_errors(region: &Region, offset: usize) -> Option<RegionError> {
    let results = [
        region.fetch_add(offset, 1).err(),
        region.compare_swap(offset, 0, 1).err(),
        region.load_u64(offset).err(),
        region.store_u64(offset, 1).err(),
    ];
    assert!(results.iter().all(|&result| result == results[0]), "{results:?}");
    results[0]
}

#[test]
fn counters_lie_inside_the_region() {
    let region = Region::alloc_at(24, 0x1000).unwrap();
    for offset in [0, 8, 16] {
        assert_eq!(counter_errors(&region, offset), None);
    }
    region.fill(0, 24, 0).unwrap();
    // Those that are out of bounds and misaligned are reported as out of bounds.
    for offset in [17, 23, 24, 32, usize::MAX - 7, usize::MAX] {
        let error = counter_errors(&region, offset);
        assert!(matches!(error, Some(RegionError::OutOfBounds { len: 8, .. })), "{offset}: {error:?}");
    }
    assert_eq!(bytes(&region), [0; 24]);
}

/// Whatever the address by which peers name it.
#[test]
fn a_counter_starts_at_a_multiple_of_8_in_this_process() {
    let mut backing = [0_u64; 5];
    let base = backing.as_mut_ptr().cast::<u8>();
    for (shift, iova) in (0..8).flat_map(|shift| [0x1000, 0x1003].map(|iova| (shift, iova))) {
        // SAFETY: the array outlives the region, and is not looked at before the region is gone.
        let region = unsafe { Region::from_raw_at(base.add(shift), 32, iova) }.unwrap();
        for offset in 0..=24 {
            let (addr, at) = (iova + offset as u64, (base.addr() + shift + offset) as u64);
            let refused = (at % 8 != 0).then_some(RegionError::Misaligned { addr, at });
            assert_eq!(counter_errors(&region, offset), refused, "{shift} {iova:#x} {offset}");
        }
    }
    assert_eq!(backing, [1, 1, 1, 1, 0], "each was set whole, by one region or another");
    let error = RegionError::Misaligned { addr: 0x1004, at: 0x7004 }.to_string();
    assert!(error.contains("0x1004") && error.contains("0x7004") && error.contains("register"), "{error}");
}

#[test]
fn counters_of_virtual_regions_stay_zero() {
    let region = Region::virtual_at(24, 0x1001).unwrap();
    region.store_u64(3, 7).unwrap();
    assert_eq!((region.fetch_add(3, 7), region.fetch_add(3, 7)), (Ok(0), Ok(0)));
    assert_eq!((region.compare_swap(3, 0, 7), region.load_u64(3)), (Ok(0), Ok(0)));
    assert_eq!(counter_errors(&region, 16), None);
    assert!(matches!(counter_errors(&region, 17), Some(RegionError::OutOfBounds { .. })));
}

/// One thread adds and one adds by comparing and swapping, through two mappings of the same bytes.
#[test]
fn no_update_of_a_counter_is_lost() {
    let rounds = if cfg!(miri) { 50 } else { 100_000 };
    let file = memfd(4096);
    let map = || Region::map_shared(file.as_fd(), 0, 4096).unwrap();
    let (adding, swapping) = (map(), map());
    let start = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            start.wait();
            (0..rounds).for_each(|_| {
                adding.fetch_add(64, 1).unwrap();
            });
        });
        scope.spawn(|| {
            start.wait();
            for _ in 0..rounds {
                let mut seen = swapping.load_u64(64).unwrap();
                loop {
                    match swapping.compare_swap(64, seen, seen + (1 << 32)).unwrap() {
                        before if before == seen => break,
                        before => seen = before,
                    }
                }
            }
        });
    });
    assert_eq!(adding.load_u64(64), Ok(rounds + (rounds << 32)));
}
