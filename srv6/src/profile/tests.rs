use super::*;
use crate::F3216;
use proptest::collection::vec;
use proptest::prelude::*;

/// The paths written down bit by bit, as the OCP API's rule says it.
fn by_the_book(format: &[u8], fields: &[Field], ev: u32) -> Vec<bool> {
    let bits_of = |value: u32, width: u8| (0..width).rev().map(move |bit| (value >> bit) & 1 == 1);
    let mut ev = bits_of(ev, 32);
    let mut out = Vec::new();
    for (at, &room) in format.iter().enumerate() {
        let field = fields.get(at).copied().unwrap_or(Field::fixed(0, 0));
        out.extend((field.width..room).map(|_| false));
        let bits = bits_of(field.init, field.width).zip(bits_of(field.mask, field.width));
        out.extend(bits.map(|(init, taken)| if taken { ev.next().unwrap() } else { init }));
    }
    out
}

fn bits_of(path: &Segments) -> Vec<bool> {
    let all = core::iter::once(path.destination()).chain(path.later().iter().copied());
    all.flat_map(|address| (0..128).rev().map(move |bit| (address.to_bits() >> bit) & 1 == 1)).collect()
}

/// A format of one to five addresses, whose places cross from one address to the next.
fn format() -> impl Strategy<Value = Vec<u8>> {
    (1..=5_u32, vec(1..=128_u8, 40..80)).prop_map(|(addresses, widths)| {
        let mut left = addresses * 128;
        let mut format = Vec::new();
        for width in widths.into_iter().cycle() {
            let width = u32::from(width).min(left);
            left -= width;
            format.push(width as u8);
            if left == 0 {
                break;
            }
        }
        format
    })
}

/// Fields that fit a format, and take at most 32 bits together.
fn profile() -> impl Strategy<Value = (Vec<u8>, Vec<Field>)> {
    (format(), vec(any::<(u32, u32, u32, u32, u8)>(), 0..80), 0..4_u32).prop_map(|(format, raw, sparse)| {
        let mut left = 32;
        let fields = raw.iter().zip(&format).map(|(&(init, mask, low, high, width), &room)| {
            let width = 1 + width % room.min(32);
            let all = ones(width.into());
            let mut mask = if width % 4 < sparse as u8 { 0 } else { mask & all };
            while mask.count_ones() > left {
                mask &= mask - 1;
            }
            left -= mask.count_ones();
            let taken = ones(mask.count_ones());
            let (low, high) = (low & taken, high & taken);
            Field { width, init: init & all, min: low.min(high), max: low.max(high), mask }
        });
        let fields = fields.collect();
        (format, fields)
    })
}

proptest! {
    #[test]
    fn expansion_is_by_the_book((format, fields) in profile(), evs in vec(any::<u32>(), 20)) {
        let profile = EvProfile::new(&format, &fields).unwrap();
        prop_assert_eq!(bits_of(profile.base()).len(), profile.addresses() * 128);
        for ev in evs.into_iter().chain([0, u32::MAX]) {
            prop_assert_eq!(bits_of(&profile.expand(ev)), by_the_book(&format, &fields, ev));
        }
    }

    /// The values that are numbered are those that pass the check, in order.
    #[test]
    fn numbering_and_check_agree((format, fields) in profile(), ns in vec(any::<u64>(), 20), wild: u32) {
        let profile = EvProfile::new(&format, &fields).unwrap();
        let count = profile.count();
        let mut ns: Vec<u64> = ns.into_iter().map(|n| n % count).chain([0, count - 1]).collect();
        ns.sort_unstable();
        ns.dedup();
        let evs: Vec<u32> = ns.iter().map(|&n| profile.nth(n).unwrap()).collect();
        prop_assert!(evs.is_sorted_by(|a, b| a < b));
        prop_assert!(evs.iter().all(|&ev| profile.check(ev) == Ok(())));
        prop_assert_eq!(profile.nth(count), None);
        // Any value passes if and only if it comes back from its digits.
        let mut left = u64::from(wild) << 32;
        let mut good = true;
        for field in fields.iter().filter(|field| field.mask != 0) {
            let digit = left >> (64 - field.mask.count_ones());
            good &= (u64::from(field.min)..=u64::from(field.max)).contains(&digit);
            left <<= field.mask.count_ones();
        }
        prop_assert_eq!(profile.check(wild).is_ok(), good && left == 0);
    }
}

/// MRC paper, section 3: the plane in every uSID, the uplink in that of the T1, the downlink in that of the
/// destination's T0.
#[test]
fn the_paper_s_scheme_is_a_profile() {
    for plane in 0..4_u32 {
        let fields = [
            Field::fixed(32, 0xfcbb_bb00),
            Field::fixed(16, 0x0a00 | plane << 12),
            Field::low_bits(16, 0x0e00 | plane << 12, 8),
            Field { width: 16, init: 0x0200 | plane << 12, min: 1, max: 2, mask: 0x0030 },
        ];
        let paths = EvProfile::new(&F3216::FORMAT, &fields).unwrap();
        assert_eq!((paths.bits(), paths.count(), paths.addresses()), (10, 512, 1));
        let ev = 0x5a << 24 | 2 << 22;
        let want =
            F3216::new(0xfcbb_bb00, &[0x0a00, 0x0e5a, 0x0220].map(|usid: u16| usid | (plane as u16) << 12));
        assert_eq!((paths.check(ev), paths.expand(ev)), (Ok(()), want.unwrap().address().into()));
        assert_eq!(paths.nth(2 * 0x5a + 1), Some(ev));
    }
}

/// All 32 bits in one field, and a path without any.
#[test]
fn a_profile_takes_all_bits_or_none() {
    let whole = EvProfile::new(&[96, 32], &[Field::fixed(1, 1), Field::low_bits(32, 7, 32)]).unwrap();
    assert_eq!((whole.count(), whole.bits()), (1 << 32, 32));
    assert_eq!(whole.expand(u32::MAX).destination(), "::1:ffff:ffff".parse::<Ipv6Addr>().unwrap());
    assert_eq!([0, 7, u32::MAX].map(|ev| whole.nth(ev.into())), [0, 7, u32::MAX].map(Some));
    let path = Segments::new(&["fcbb::1".parse().unwrap(), "fcbb::2".parse().unwrap()]).unwrap();
    let fixed = EvProfile::from(path);
    assert_eq!((fixed.count(), fixed.bits(), fixed.addresses()), (1, 0, 2));
    assert_eq!((fixed.nth(0), fixed.nth(1), fixed.expand(9)), (Some(0), None, path));
    assert_eq!((fixed.check(0), fixed.check(1).is_err()), (Ok(()), true));
}

type Change = fn(&mut Field);

#[test]
fn errors_name_the_field() {
    let good = Field { width: 16, init: 0xffff, min: 3, max: 7, mask: 0b111 };
    let with = |change: Change| {
        let mut field = good;
        change(&mut field);
        EvProfile::new(&F3216::FORMAT, &[Field::fixed(32, 1), field])
            .err()
            .map_or(String::new(), |error| error.to_string())
    };
    assert_eq!(with(|_| ()), "");
    let cases: [(Change, &str); 8] = [
        (|field| field.width = 0, "field 2: width: 0 bits given, 1 to 16 fit"),
        (|field| field.width = 17, "field 2: width: 17 bits given, 1 to 16 fit"),
        (|field| field.init = 0x1_0000, "field 2: init: 0x10000 has more than 16 bits"),
        (|field| field.mask |= 0x1_0000, "field 2: mask: 0x10007 has more than 16 bits"),
        (|field| field.max = 8, "field 2: max: 8 has more bits than the mask takes, which are 3"),
        (|field| field.min = 8, "field 2: min: 8 is more than max, which is 7"),
        (|field| field.mask = 0, "field 2: max: 7 has more bits than the mask takes, which are 0"),
        (|field| field.max = 2, "field 2: min: 3 is more than max, which is 2"),
    ];
    for (change, want) in cases {
        assert_eq!(with(change), want);
    }
    let of = |format: &[u8], fields: &[Field]| EvProfile::new(format, fields).unwrap_err().to_string();
    let wide = Field::low_bits(32, 0, 17);
    assert!(of(&[128], &[Field::fixed(33, 0)]).contains("field 1: width: 33 bits given, 1 to 32"));
    assert!(of(&[64, 64], &[wide, wide]).contains("take 34 bits"));
    assert!(of(&[128], &[wide, wide]).contains("2 fields given, the format has 1"));
    assert!(of(&[0, 128], &[]).contains("format place 1: 0 bits"));
    assert!(of(&[128, 129], &[]).contains("format place 2: 129 bits"));
    for format in [&[][..], &[127], &[128, 1], &[128; 6]] {
        assert!(of(format, &[]).contains("128, 256, 384, 512 or 640"), "{format:?}");
    }
    let paths = EvProfile::new(&[128], &[good]).unwrap();
    assert_eq!(paths.check(3 << 29), Ok(()));
    let text = |ev| paths.check(ev).unwrap_err().to_string();
    assert_eq!(text(2 << 29), "entropy value 0x40000000: field 1 is 2, the profile allows 3 to 7");
    assert!(text(3 << 29 | 1).contains("take its first 3 bits"));
}
