use std::fmt;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use crate::{Assembler, Error, Program, Reg, Width, sys, verdict};

/// Numbers of 64 bits that programs and processes share. It lives as long as somebody has it: this value, another process, or
/// a program that is loaded.
#[derive(Debug)]
pub struct Array {
    name: String,
    fd: OwnedFd,
    len: usize,
}

impl Array {
    /// As many numbers as a program can reach.
    pub const MAX_LEN: usize = (i16::MAX as usize + 1) / 8;

    /// `len` zeros. The kernel knows the array by the first 15 letters of `name`.
    ///
    /// # Errors
    /// If there are none or more than [`MAX_LEN`](Self::MAX_LEN), or the kernel refuses.
    pub fn new(name: &str, len: usize) -> Result<Self, Error> {
        if !(1..=Self::MAX_LEN).contains(&len) {
            let what = format!("{len} numbers; an array has 1 to {}", Self::MAX_LEN);
            return Err(Error::Map { name: name.to_owned(), what });
        }
        let fd = sys::array_create(name, 8 * len as u32)
            .map_err(|error| Error::system(format!("make the map {name}"), error, "CAP_BPF"))?;
        Ok(Self { name: name.to_owned(), fd, len })
    }

    /// The array that the kernel has under a number, which [`id`](Self::id) tells.
    ///
    /// # Errors
    /// If there is none, or something else.
    pub fn by_id(id: u32) -> Result<Self, Error> {
        let what = || format!("open the map {id}");
        let fd = sys::map_by_id(id).map_err(|error| Error::system(what(), error, "CAP_SYS_ADMIN"))?;
        let info = sys::map_info(&fd).map_err(|error| Error::system(what(), error, "CAP_BPF"))?;
        if !info.is_single_array() {
            return Err(Error::Map { name: id.to_string(), what: "not an array of numbers".to_owned() });
        }
        Ok(Self { name: id.to_string(), fd, len: info.value_size as usize / 8 })
    }

    /// Its number in the kernel.
    pub fn id(&self) -> Result<u32, Error> {
        let info = sys::map_info(&self.fd);
        let info = info.map_err(|error| Error::system(format!("ask for {self}"), error, "CAP_BPF"))?;
        Ok(info.id)
    }

    /// How many numbers it has.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The numbers as they are now; each is whole, but they may be of different moments.
    pub fn read(&self) -> Result<Vec<u64>, Error> {
        let mut numbers = vec![0; self.len];
        sys::array_read(&self.fd, &mut numbers)
            .map_err(|error| Error::system(format!("read {self}"), error, "CAP_BPF"))?;
        Ok(numbers)
    }

    /// Sets some of the numbers to 0, and leaves the others as they are, whatever programs do with them meanwhile.
    ///
    /// # Errors
    /// If there is no such number, or the process may not run programs.
    pub fn clear(&self, numbers: &[usize]) -> Result<(), Error> {
        if let Some(none) = numbers.iter().find(|&&at| at >= self.len) {
            let what = format!("number {none}; the array has {}", self.len);
            return Err(Error::Map { name: self.name.clone(), what });
        }
        if numbers.is_empty() {
            return Ok(());
        }
        // The kernel writes whole values, and this one has all the numbers in it.
        let mut text = Assembler::new();
        text.array(Reg::R1, self);
        for &at in numbers {
            text.store(Width::Double, Reg::R1, 8 * at as i16, 0);
        }
        text.mov(Reg::R0, verdict::PASS).exit();
        Program::load("clear", text)?.run(&[0; 64])?;
        Ok(())
    }
}

impl fmt::Display for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the map {}", self.name)
    }
}

impl AsRawFd for Array {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// `AF_XDP` sockets by receive queue (`BPF_MAP_TYPE_XSKMAP`): where [`Helper::RedirectMap`](crate::Helper::RedirectMap) sends packets. A
/// socket that is closed leaves it.
#[derive(Debug)]
pub struct SocketMap {
    name: String,
    fd: OwnedFd,
}

impl SocketMap {
    /// Room for the sockets of so many queues. The kernel knows the map by the first 15 letters of `name`.
    ///
    /// # Errors
    /// If there are no queues, or the kernel refuses.
    pub fn new(name: &str, queues: u32) -> Result<Self, Error> {
        let fd = sys::sockets_create(name, queues).map_err(|error| {
            Error::system(format!("make the map {name}"), error, "CAP_BPF and CAP_NET_ADMIN")
        })?;
        Ok(Self { name: name.to_owned(), fd })
    }

    /// Has packets of a queue sent to a socket, which must be bound to that queue: to another, they are dropped.
    ///
    /// # Errors
    /// If there is no such queue, or that is no such socket.
    pub fn insert(&self, queue: u32, socket: impl AsFd) -> Result<(), Error> {
        sys::socket_insert(&self.fd, queue, socket.as_fd()).map_err(|error| {
            Error::system(format!("put the socket of queue {queue} into {self}"), error, "CAP_BPF")
        })
    }
}

impl fmt::Display for SocketMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the map {}", self.name)
    }
}

impl AsRawFd for SocketMap {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
