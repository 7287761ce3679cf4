//! All-reduce over a ring of ranks: once around to add up, and once to distribute.

use std::thread;

use spindrift_exchange::{Channel, Listener};

use crate::node::{Mode, Nics, Node};
use crate::{Outcome, TIMEOUT};

/// Bytes of a number.
const F32: usize = size_of::<f32>();

/// A rank's place in the ring, with memory for the numbers.
pub struct Ring {
    node: Node,
    rank: usize,
    ranks: usize,
    /// Numbers of each part; the last ones are padding.
    part: usize,
    /// The set-up connections stay open: a rank that ends is noticed by its neighbours.
    neighbours: [Channel; 2],
}

impl Ring {
    /// Connects with both neighbours. All ranks call it. `hosts` has an address of each rank, at which it listens.
    pub fn connect(
        mode: Mode,
        nics: &Nics,
        (rank, hosts): (usize, &[String]),
        port: u16,
        numbers: usize,
    ) -> Outcome<Self> {
        let ranks = hosts.len();
        let part = numbers.div_ceil(ranks);
        // What is sent, and a place for each message of one all-reduce.
        let mut node = Node::open(mode, nics, (ranks + 2 * (ranks - 1)) * part * F32)?;
        let listener = Listener::bind((hosts[rank].as_str(), port))?;
        let accept = |node: &mut Node| {
            let mut channel = listener.accept(TIMEOUT, || true)?;
            let store = listener.accept(TIMEOUT, || true)?;
            node.connect(1, &mut channel, store)?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(channel)
        };
        let join = |node: &mut Node| {
            let next = (hosts[(rank + 1) % ranks].as_str(), port);
            let mut channel = patiently(|| Channel::connect(next, TIMEOUT))?;
            let store = Channel::connect(next, TIMEOUT)?;
            node.connect(0, &mut channel, store)?;
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(channel)
        };
        // One rank accepts first, or all would wait for each other.
        let neighbours = if rank == 0 {
            let before = accept(&mut node)?;
            [join(&mut node)?, before]
        } else {
            let next = join(&mut node)?;
            [next, accept(&mut node)?]
        };
        node.prepare()?;
        Ok(Self { node, rank, ranks, part, neighbours })
    }

    /// The sum of all ranks' numbers, in the same order everywhere: it is the same to the bit.
    pub fn all_reduce(&mut self, numbers: &mut [f32]) -> Outcome<()> {
        let (ranks, part) = (self.ranks, self.part);
        let bytes = part * F32;
        let messages = 2 * (ranks - 1);
        let place = |message: usize| (ranks + message) * bytes;
        for message in 0..messages {
            self.node.receive(place(message), bytes)?;
        }
        let [sent, received] = self.node.done;
        for message in 0..messages {
            // The part that has gone around so far: first that of this rank, then what came last.
            let out = (self.rank + 2 * ranks - message) % ranks;
            let range = out * part..((out + 1) * part).min(numbers.len());
            let own: Vec<u8> = numbers[range].iter().flat_map(|number| number.to_le_bytes()).collect();
            self.node.region().write_at(out * bytes, &own)?;
            self.node.send(out * bytes, bytes)?;
            self.wait([sent + message as u64 + 1, received + message as u64 + 1])?;
            let mut got = vec![0; bytes];
            self.node.region().read_at(place(message), &mut got)?;
            let arrived = (out + ranks - 1) % ranks;
            let own = numbers[arrived * part..].iter_mut().take(part);
            for (number, bytes) in own.zip(got.as_chunks::<F32>().0) {
                let other = f32::from_le_bytes(*bytes);
                *number = if message < ranks - 1 { *number + other } else { other };
            }
        }
        Ok(())
    }

    fn wait(&mut self, done: [u64; 2]) -> Outcome<()> {
        let mut polls = 0_u32;
        while self.node.done.iter().zip(&done).any(|(done, wanted)| done < wanted) {
            if self.node.poll()? {
                continue;
            }
            polls += 1;
            if polls.is_multiple_of(1024) {
                // A neighbour that has ended has closed its connections.
                for channel in &mut self.neighbours {
                    channel.try_receive::<()>()?;
                }
            }
            thread::yield_now();
        }
        Ok(())
    }

    /// The least of all ranks' numbers.
    pub fn least(&mut self, own: u64) -> Outcome<u64> {
        let mut least = own;
        for _ in 1..self.ranks {
            self.neighbours[0].send(&least)?;
            least = least.min(self.neighbours[1].receive()?);
        }
        Ok(least)
    }

    /// Waits for all ranks, which have no more to send. The lanes go on meanwhile.
    pub fn end(&mut self) -> Outcome<()> {
        self.all_reduce(&mut vec![0.0; self.part * self.ranks])?;
        let start = std::time::Instant::now();
        while start.elapsed().as_millis() < 200 {
            self.node.poll()?;
        }
        Ok(())
    }
}

/// Tries again while the other side is not there yet.
fn patiently<T, E: std::error::Error + Send + Sync + 'static>(
    attempt: impl Fn() -> Result<T, E>,
) -> Outcome<T> {
    let start = std::time::Instant::now();
    loop {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(error) if start.elapsed() > TIMEOUT => return Err(error.into()),
            Err(_) => thread::sleep(std::time::Duration::from_millis(50)),
        }
    }
}
