//! What is written here is what the kernel does: small programs, loaded and run. Needs the right to load programs; without it each
//! test says so and passes.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr, reason = "tests")]

use spindrift_bpf::{
    Alu, Array, Assembler, Cond, Error, Helper, Operand, Program, Reg, SocketMap, Width, context, verdict,
};

/// The shortest packet that can be run.
const PACKET: [u8; 64] = {
    let mut packet = [0; 64];
    let mut at = 0;
    while at < 64 {
        packet[at] = at as u8 + 1;
        at += 1;
    }
    packet
};

fn load(text: Assembler<'_>) -> Option<Program> {
    match Program::load("spindrift_test", text) {
        Ok(program) => Some(program),
        Err(error @ Error::Permission { .. }) => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// What a program returns for `PACKET`; `None` if it cannot be loaded.
fn run(text: Assembler<'_>) -> Option<i32> {
    let ran = load(text)?.run(&PACKET).unwrap();
    assert_eq!(ran.packet, PACKET);
    Some(ran.verdict)
}

#[test]
fn arithmetic_is_of_64_bits_and_unsigned() {
    let (high, low) = (0x0123_4567_89ab_cdef_u64, 0x1_0000_0003_u64);
    for (op, expected) in [
        (Alu::Add, high.wrapping_add(low)),
        (Alu::Sub, high.wrapping_sub(low)),
        (Alu::Mul, high.wrapping_mul(low)),
        (Alu::Div, high / low),
        (Alu::Or, high | low),
        (Alu::And, high & low),
        (Alu::ShiftLeft, high << (low & 63)),
        (Alu::ShiftRight, high >> (low & 63)),
        (Alu::Mod, high % low),
        (Alu::Xor, high ^ low),
        (Alu::Move, low),
    ] {
        // By a register, and whether all 64 bits are right.
        let mut text = Assembler::new();
        let wrong = text.label();
        text.imm64(Reg::R1, high).imm64(Reg::R2, low).imm64(Reg::R3, expected);
        text.alu(op, Reg::R1, Reg::R2).mov(Reg::R0, 1).jump_if(Cond::NotEqual, Reg::R1, Reg::R3, wrong);
        text.mov(Reg::R0, 7).place(wrong).exit();
        let Some(result) = run(text) else { return };
        assert_eq!(result, 7, "{op:?}");
    }
    // A number is sign-extended.
    let mut text = Assembler::new();
    let wrong = text.label();
    text.mov(Reg::R1, -1).imm64(Reg::R2, u64::MAX).mov(Reg::R0, 1);
    text.jump_if(Cond::NotEqual, Reg::R1, Reg::R2, wrong).mov(Reg::R0, 7).place(wrong).exit();
    assert_eq!(run(text), Some(7));
}

#[test]
fn jumps_are_taken_where_they_should() {
    let far = u64::MAX;
    let cases: [(Cond, u64, u64, bool); 16] = [
        (Cond::Equal, far, far, true),
        (Cond::Equal, far, 5, false),
        (Cond::NotEqual, far, 5, true),
        (Cond::NotEqual, far, far, false),
        (Cond::Greater, far, 5, true),
        (Cond::Greater, 5, 5, false),
        (Cond::GreaterOrEqual, 5, 5, true),
        (Cond::GreaterOrEqual, 5, far, false),
        (Cond::Less, 5, far, true),
        (Cond::Less, 5, 5, false),
        (Cond::LessOrEqual, 5, 5, true),
        (Cond::LessOrEqual, far, 5, false),
        (Cond::AnyBit, 6, 3, true),
        (Cond::AnyBit, 6, 9, false),
        (Cond::Equal, 1 << 32, 0, false),
        (Cond::AnyBit, 1 << 63, far, true),
    ];
    for (cond, left, right, expected) in cases {
        let operands = [Some(Operand::Reg(Reg::R2)), i32::try_from(right).ok().map(Operand::Imm)];
        for operand in operands.into_iter().flatten() {
            let mut text = Assembler::new();
            let (taken, end) = (text.label(), text.label());
            text.imm64(Reg::R1, left).imm64(Reg::R2, right);
            text.jump_if(cond, Reg::R1, operand, taken).mov(Reg::R0, 0).jump(end);
            text.place(taken).mov(Reg::R0, 1).place(end).exit();
            let Some(result) = run(text) else { return };
            assert_eq!(result == 1, expected, "{cond:?} {left} {operand:?}");
        }
    }
}

/// The packet's first byte is in `R2`, behind which there are 16 bytes.
fn with_packet<'a>() -> Assembler<'a> {
    let mut text = Assembler::new();
    let long = text.label();
    text.load(Width::Word, Reg::R2, Reg::R1, context::DATA);
    text.load(Width::Word, Reg::R3, Reg::R1, context::DATA_END);
    text.mov(Reg::R4, Reg::R2).alu(Alu::Add, Reg::R4, 16).jump_if(Cond::LessOrEqual, Reg::R4, Reg::R3, long);
    text.mov(Reg::R0, -1).exit().place(long);
    text
}

#[test]
fn packets_are_read_and_written_in_every_width() {
    for (width, loaded, swapped) in [
        (Width::Byte, 0x05, 0x05),
        (Width::Half, 0x0605, 0x0506),
        (Width::Word, 0x0807_0605, 0x0506_0708),
        (Width::Double, 0x0c0b_0a09_0807_0605, 0x0506_0708_090a_0b0c),
    ] {
        let mut text = with_packet();
        let wrong = text.label();
        text.mov(Reg::R0, 1).load(width, Reg::R5, Reg::R2, 4).imm64(Reg::R6, loaded);
        text.jump_if(Cond::NotEqual, Reg::R5, Reg::R6, wrong);
        text.mov(Reg::R0, 2).swap(Reg::R5, width).imm64(Reg::R6, swapped);
        text.jump_if(Cond::NotEqual, Reg::R5, Reg::R6, wrong).mov(Reg::R0, 7).place(wrong).exit();
        let Some(result) = run(text) else { return };
        assert_eq!(result, 7, "{width:?}");

        // By a register, then by a number.
        let bytes = match width {
            Width::Byte => 1,
            Width::Half => 2,
            Width::Word => 4,
            Width::Double => 8,
        };
        let pattern = 0xf1f2_f3f4_f5f6_f7f8_u64;
        for (operand, stored) in
            [(Operand::Reg(Reg::R5), pattern.to_le_bytes()), (Operand::Imm(-2), (-2_i64).to_le_bytes())]
        {
            let mut text = with_packet();
            text.imm64(Reg::R5, pattern)
                .store(width, Reg::R2, 3, operand)
                .mov(Reg::R0, verdict::TRANSMIT)
                .exit();
            let ran = load(text).unwrap().run(&PACKET).unwrap();
            let mut expected = PACKET;
            expected[3..3 + bytes].copy_from_slice(&stored[..bytes]);
            assert_eq!((ran.verdict, &ran.packet[..]), (verdict::TRANSMIT, &expected[..]), "{width:?}");
        }
    }
}

#[test]
fn numbers_of_an_array_are_shared() {
    let array = match Array::new("spindrift_test", 3) {
        Ok(array) => array,
        Err(error @ Error::Permission { .. }) => return eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    let mut text = Assembler::new();
    text.array(Reg::R1, &array).mov(Reg::R2, 5).atomic_add(Reg::R1, 16, Reg::R2);
    text.mov(Reg::R2, 1).atomic_add(Reg::R1, 0, Reg::R2).mov(Reg::R0, verdict::PASS).exit();
    let program = load(text).unwrap();
    let again = Array::by_id(array.id().unwrap()).unwrap();
    drop(array);
    for turn in 1..=3 {
        program.run(&PACKET).unwrap();
        assert_eq!(again.read().unwrap(), [turn, 0, 5 * turn]);
    }
    assert!(Array::by_id(program.id().unwrap() ^ 0x4000_0000).is_err());
}

#[test]
fn a_number_is_exchanged_for_what_it_is_and_cleared_alone() {
    let array = match Array::new("spindrift_test", 3) {
        Ok(array) => array,
        Err(error @ Error::Permission { .. }) => return eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    let exchange = |expected: i32, new: i32| {
        let mut text = Assembler::new();
        text.array(Reg::R1, &array).mov(Reg::R0, expected).mov(Reg::R2, new);
        text.compare_exchange(Reg::R1, 8, Reg::R2).exit();
        run(text).unwrap()
    };
    assert_eq!(exchange(0, 5), 0);
    assert_eq!(array.read().unwrap(), [0, 5, 0]);
    assert_eq!(exchange(0, 6), 5);
    assert_eq!(array.read().unwrap(), [0, 5, 0]);
    assert_eq!(exchange(5, 6), 5);
    assert_eq!(array.read().unwrap(), [0, 6, 0]);

    let mut text = Assembler::new();
    text.array(Reg::R1, &array).imm64(Reg::R2, u64::MAX);
    for offset in [0, 8, 16] {
        text.store(Width::Double, Reg::R1, offset, Reg::R2);
    }
    text.mov(Reg::R0, 0).exit();
    run(text);
    array.clear(&[]).unwrap();
    array.clear(&[1]).unwrap();
    assert_eq!(array.read().unwrap(), [u64::MAX, 0, u64::MAX]);
    array.clear(&[0, 2]).unwrap();
    assert_eq!(array.read().unwrap(), [0; 3]);
    let error = array.clear(&[0, 3]).unwrap_err().to_string();
    assert!(error.contains("number 3"), "{error}");
}

#[test]
fn helpers_are_called() {
    let mut text = Assembler::new();
    text.call(Helper::BufferLen).exit();
    let Some(len) = run(text) else { return };
    assert_eq!(len, 64);

    // Time passes, and is that of the system's own clock.
    let now = || {
        let mut text = Assembler::new();
        text.call(Helper::Now).alu(Alu::Div, Reg::R0, 1_000_000).exit();
        i64::from(run(text).unwrap())
    };
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let time = time.tv_sec * 1000 + time.tv_nsec / 1_000_000;
    let late = now().wrapping_sub(time) & 0xffff_ffff;
    assert!(late < 10_000, "{late} ms");

    let random = || {
        let mut text = Assembler::new();
        text.call(Helper::Random).exit();
        run(text).unwrap()
    };
    let drawn: std::collections::BTreeSet<_> = (0..8).map(|_| random()).collect();
    assert!(drawn.len() > 4, "{drawn:?}");

    let mut text = Assembler::new();
    text.mov(Reg::R2, -7).call(Helper::AdjustTail).exit();
    let ran = load(text).unwrap().run(&PACKET).unwrap();
    assert_eq!((ran.verdict, &ran.packet[..]), (0, &PACKET[..57]));
}

/// Without a socket for its queue, a packet meets the verdict for that case.
#[test]
fn a_queue_without_a_socket_has_its_verdict() {
    let sockets = match SocketMap::new("spindrift_test", 2) {
        Ok(sockets) => sockets,
        Err(error @ Error::Permission { .. }) => return eprintln!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    for otherwise in [verdict::DROP, verdict::PASS] {
        let mut text = Assembler::new();
        text.mov(Reg::R2, 1).mov(Reg::R3, otherwise).sockets(Reg::R1, &sockets);
        text.call(Helper::RedirectMap).exit();
        assert_eq!(load(text).unwrap().run(&PACKET).unwrap().verdict, otherwise);
    }
    // Only sockets of that kind, and only queues that there are.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for queue in [1, 2] {
        let error = sockets.insert(queue, &socket).unwrap_err().to_string();
        assert!(error.contains(&format!("queue {queue}")) && error.contains("spindrift_test"), "{error}");
    }
    let error = SocketMap::new("odd", 0).unwrap_err().to_string();
    assert!(error.contains("odd"), "{error}");
}

#[test]
fn errors_tell_what_is_wrong() {
    let mut text = Assembler::new();
    let nowhere = text.label();
    text.mov(Reg::R0, 0).jump(nowhere).exit();
    let error = Program::load("lost", text).unwrap_err().to_string();
    assert!(error.contains("lost") && error.contains("instruction 1"), "{error}");

    let mut text = Assembler::new();
    let far = text.label();
    text.jump(far);
    for _ in 0..32768 {
        text.mov(Reg::R0, 0);
    }
    text.place(far).exit();
    let error = Program::load("long", text).unwrap_err().to_string();
    assert!(error.contains("instruction 0 jumps too far"), "{error}");

    // It returns what nobody has put there.
    let mut text = Assembler::new();
    text.exit();
    let error = Program::load("empty", text).unwrap_err();
    let told = error.to_string();
    let refused = told.contains("empty") && told.contains("R0 !read_ok");
    assert!(refused || matches!(error, Error::Permission { .. }), "{told}");

    for len in [0, Array::MAX_LEN + 1] {
        let error = Array::new("odd", len).unwrap_err().to_string();
        assert!(error.contains("odd") && error.contains(&Array::MAX_LEN.to_string()), "{error}");
    }
}
