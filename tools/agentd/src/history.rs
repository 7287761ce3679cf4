//! What an agent remembers of the last hours: the level of each link, and the faults.
//!
//! A frame holds the levels of all links. The last hour has one for each 10 s, the eight hours before now one for each minute, with the worst
//! level of each link in it. A frame is written as runs of equal levels, or with half a byte for each link, whichever is shorter. So a healthy
//! fabric of 262,144 links takes a few bytes for each frame, and any fabric at most [`MAX_BYTES`]: the oldest frames go first.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::levels::{self, NAMES};
use crate::runner::Event;
use crate::snapshot::{FindingReport, Part};

/// Time between two frames, in seconds.
pub const STEP: u32 = 10;
/// Frames that are kept as they were.
const FINE: usize = 360;
/// Frames of which one coarse frame is made.
const MERGED: u32 = 6;
const COARSE: usize = 480;
/// Memory of the frames, at most.
pub const MAX_BYTES: usize = 32 << 20;
/// Faults that are kept, and their memory.
const EPISODES: usize = 1_000;
const EPISODE_BYTES: usize = 1 << 20;

/// How the levels of a frame are written.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Written {
    /// A level, and how many links in a row have it: 7 bits a byte, the lowest first, the highest bit says that more follow.
    Runs(Box<[u8]>),
    /// Two links in a byte, the first in the lower half.
    Halves(Box<[u8]>),
}

impl Written {
    fn new(levels: &[u8]) -> Self {
        let halves = levels.len().div_ceil(2);
        let mut runs = Vec::new();
        for run in levels.chunk_by(|a, b| a == b) {
            runs.push(run.first().copied().unwrap_or_default());
            let mut len = run.len();
            while len >= 0x80 {
                runs.push(len as u8 | 0x80);
                len >>= 7;
            }
            runs.push(len as u8);
            if runs.len() > halves {
                let pair = |pair: &[u8]| pair.iter().rev().fold(0, |byte, level| byte << 4 | level & 0xf);
                return Self::Halves(levels.chunks(2).map(pair).collect());
            }
        }
        Self::Runs(runs.into())
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Runs(bytes) | Self::Halves(bytes) => bytes,
        }
    }

    /// The level of one link.
    fn level(&self, link: usize) -> u8 {
        match self {
            Self::Halves(bytes) => {
                bytes.get(link / 2).map_or(levels::UNKNOWN, |byte| byte >> (link % 2 * 4) & 0xf)
            }
            Self::Runs(bytes) => {
                let (mut bytes, mut end) = (bytes.iter(), 0);
                while let Some(level) = bytes.next() {
                    let mut shift = 0;
                    for byte in bytes.by_ref() {
                        end += usize::from(byte & 0x7f) << shift;
                        shift += 7;
                        if byte & 0x80 == 0 {
                            break;
                        }
                    }
                    if link < end {
                        return *level;
                    }
                }
                levels::UNKNOWN
            }
        }
    }
}

/// The levels of all links at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    about: About,
    links: u32,
    written: Written,
}

/// What a frame is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// Names the frame; a later one has a larger number.
    pub id: u64,
    /// The end of its time, in seconds since 1970.
    pub time: f64,
    /// Its length, in seconds.
    pub seconds: u32,
    /// How many links have each level, `unknown` first.
    pub tally: [u32; NAMES.len()],
}

impl Frame {
    /// A frame of these levels. Its tally is counted.
    pub fn new(about: About, levels: &[u8]) -> Self {
        let about = About { tally: levels::tally(levels), ..about };
        Self { about, links: levels.len() as u32, written: Written::new(levels) }
    }

    /// What it is about.
    pub const fn about(&self) -> About {
        self.about
    }

    /// As the interface sends it. Numbers are little-endian: `SPDR`, the number of links (32 bits), the time (64-bit floating point), the
    /// length in seconds (32 bits), 0 for runs or 1 for halves (8 bits), three bytes 0, and the levels.
    pub fn to_bytes(&self) -> Vec<u8> {
        let kind = match self.written {
            Written::Runs(_) => 0,
            Written::Halves(_) => 1,
        };
        let mut bytes = b"SPDR".to_vec();
        bytes.extend(self.links.to_le_bytes());
        bytes.extend(self.about.time.to_le_bytes());
        bytes.extend(self.about.seconds.to_le_bytes());
        bytes.extend([kind, 0, 0, 0]);
        bytes.extend(self.written.bytes());
        bytes
    }

    fn size(&self) -> usize {
        size_of::<Self>() + self.written.bytes().len()
    }
}

/// The latest frames of one length.
#[derive(Debug)]
struct Tier {
    frames: VecDeque<Frame>,
    bytes: usize,
    most: usize,
    most_bytes: usize,
    /// Frames that go together.
    group: usize,
}

impl Tier {
    fn push(&mut self, frame: Frame) {
        self.bytes += frame.size();
        self.frames.push_back(frame);
        while self.frames.len() > self.most || self.bytes > self.most_bytes {
            for gone in self.frames.drain(..self.group.min(self.frames.len())) {
                self.bytes -= gone.size();
            }
        }
    }
}

/// See the [module documentation](self).
#[derive(Debug)]
pub struct History {
    fine: Tier,
    coarse: Tier,
    /// The worst levels since the last coarse frame, and the frames that they are of.
    worst: Vec<u8>,
    merged: u32,
    last: u64,
}

impl Default for History {
    fn default() -> Self {
        Self::new(MAX_BYTES)
    }
}

impl History {
    /// A history of at most so many bytes, half of them for the last hour.
    fn new(most_bytes: usize) -> Self {
        let tier =
            |most, group| Tier { frames: VecDeque::new(), bytes: 0, most, most_bytes: most_bytes / 2, group };
        // No gap between them: fine frames go when a coarse frame has all of their time.
        let (fine, coarse) = (tier(FINE, MERGED as usize), tier(COARSE, 1));
        Self { fine, coarse, worst: Vec::new(), merged: 0, last: 0 }
    }

    /// Adds the levels of the [`STEP`] seconds that end at this time of day.
    pub fn push(&mut self, time: f64, levels: &[u8]) {
        self.last += 1;
        let about = About { id: self.last, time, seconds: STEP, ..About::default() };
        self.fine.push(Frame::new(about, levels));
        self.worst.resize(levels.len(), levels::UNKNOWN);
        for (worst, level) in self.worst.iter_mut().zip(levels) {
            *worst = (*worst).max(*level);
        }
        self.merged += 1;
        if self.merged == MERGED {
            self.last += 1;
            let about = About { id: self.last, seconds: STEP * MERGED, ..about };
            self.coarse.push(Frame::new(about, &self.worst));
            (self.worst, self.merged) = (Vec::new(), 0);
        }
    }

    /// The frames, the oldest first: coarse ones as far as they end before the first of the others begins.
    pub fn frames(&self) -> impl Iterator<Item = &Frame> {
        let first = self.fine.frames.front().map_or(0, |frame| frame.about.id);
        // The coarse frame before a fine one was made just before it.
        let older = self.coarse.frames.iter().filter(move |frame| frame.about.id < first);
        older.chain(&self.fine.frames)
    }

    /// The frame with this name, if it is still there.
    pub fn frame(&self, id: u64) -> Option<&Frame> {
        self.frames().find(|frame| frame.about.id == id)
    }

    /// The levels of a link in each of the [`frames`](Self::frames).
    pub fn of_link(&self, link: usize) -> Vec<u8> {
        self.frames().map(|frame| frame.written.level(link)).collect()
    }

    /// The memory of the frames.
    pub const fn bytes(&self) -> usize {
        self.fine.bytes + self.coarse.bytes
    }
}

/// A fault from its beginning to its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// The fault, as it was last told of.
    pub finding: FindingReport,
    /// When it ended, if it has.
    pub until: Option<f64>,
}

impl Episode {
    fn size(&self) -> usize {
        let part = |part: &Part| size_of::<Part>() + part.kind.len() + part.name.len();
        let parts: usize = self.finding.components.iter().map(part).sum();
        size_of::<Self>() + parts + self.finding.fault.len() + self.finding.text.len()
    }
}

/// The latest faults, at most 1,000 and 1 MiB.
#[derive(Clone, Debug, Default)]
pub struct Episodes {
    episodes: VecDeque<Episode>,
    bytes: usize,
}

impl Episodes {
    /// Takes note of what the agent tells of.
    pub fn note(&mut self, event: &Event) {
        let (finding, until) = match event {
            Event::Opened(finding) | Event::Changed(finding, _) => (finding, None),
            Event::Closed(finding, at) => (finding, Some(*at)),
            Event::Decided(_) | Event::Counted(_) => return,
        };
        let is_same = |episode: &&mut Episode| {
            episode.until.is_none() && episode.finding.components == finding.components
        };
        let episode = Episode { finding: finding.clone(), until };
        self.bytes += episode.size();
        if let Some(open) = self.episodes.iter_mut().rev().find(is_same) {
            self.bytes -= open.size();
            *open = episode;
        } else {
            self.episodes.push_back(episode);
        }
        while self.episodes.len() > EPISODES || self.bytes > EPISODE_BYTES {
            let Some(gone) = self.episodes.pop_front() else { break };
            self.bytes -= gone.size();
        }
    }

    /// The oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Episode> {
        self.episodes.iter()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::levels::{DOWN, HEALTHY, LOW, UNKNOWN};

    /// The levels of a frame, from what the interface sends, as the page reads it.
    fn read(bytes: &[u8]) -> Vec<u8> {
        assert_eq!(&bytes[..4], b"SPDR");
        let links = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        let mut levels = Vec::new();
        let mut rest = bytes[24..].iter().copied();
        if bytes[20] == 1 {
            levels.extend(rest.flat_map(|byte| [byte & 0xf, byte >> 4]));
            levels.truncate(links);
            return levels;
        }
        while let Some(level) = rest.next() {
            let (mut len, mut shift) = (0_usize, 0);
            loop {
                let byte = rest.next().unwrap();
                len |= usize::from(byte & 0x7f) << shift;
                shift += 7;
                if byte < 0x80 {
                    break;
                }
            }
            levels.extend(std::iter::repeat_n(level, len));
        }
        levels
    }

    /// Levels without any order.
    fn noise(links: usize, mut seed: u32) -> Vec<u8> {
        let next = |_| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8 % 7
        };
        (0..links).map(next).collect()
    }

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let mut one_down = vec![HEALTHY; 70_000];
        one_down[300] = DOWN;
        for (levels, kind, most) in [
            (vec![], 0, 0),
            (vec![DOWN; 127], 0, 2),
            (vec![DOWN; 128], 0, 3),
            (one_down, 0, 9),
            (noise(1_001, 1), 1, 501),
            (noise(64, 2), 1, 32),
        ] {
            let frame = Frame::new(About { time: 5.5, seconds: 10, ..About::default() }, &levels);
            let bytes = frame.to_bytes();
            assert_eq!(read(&bytes), levels);
            assert!(
                bytes[20] == kind && bytes.len() - 24 <= most,
                "{} bytes for {}",
                bytes.len(),
                levels.len()
            );
            assert_eq!(f64::from_le_bytes(bytes[8..16].try_into().unwrap()).to_bits(), 5.5_f64.to_bits());
            assert_eq!(u32::from_le_bytes(bytes[16..20].try_into().unwrap()), 10);
            for (link, level) in levels.iter().enumerate() {
                assert_eq!(frame.written.level(link), *level, "{link}");
            }
            assert_eq!(frame.written.level(levels.len() + 1), UNKNOWN);
            assert_eq!(frame.about().tally.iter().sum::<u32>() as usize, levels.len());
        }
    }

    #[test]
    fn the_last_hour_is_fine_and_the_hours_before_are_coarse() {
        let mut history = History::default();
        // One link is down in one frame of each hour.
        for step in 0..10 * 360_u32 {
            let level = if step % 360 == 7 { DOWN } else { HEALTHY };
            history.push(f64::from((step + 1) * STEP), &[HEALTHY, level, LOW]);
        }
        let frames: Vec<_> = history.frames().map(Frame::about).collect();
        // The last of these eight hours is fine.
        assert_eq!(frames.len(), 7 * 60 + 360);
        assert_eq!(frames.last().map(|frame| frame.time), Some(36_000.0));
        for pair in frames.windows(2) {
            let [before, after] = pair else { continue };
            let gap = after.time - f64::from(after.seconds) - before.time;
            assert!(gap.abs() < 1e-9 && before.id < after.id, "{pair:?}");
        }
        let levels = history.of_link(1);
        let down: Vec<_> =
            frames.iter().zip(&levels).filter(|(_, level)| **level == DOWN).map(|(frame, _)| frame).collect();
        assert_eq!(
            down.iter().map(|frame| frame.seconds).collect::<Vec<_>>(),
            [60, 60, 60, 60, 60, 60, 60, 10]
        );
        assert!(down.iter().all(|frame| frame.tally == [0, 1, 0, 1, 0, 0, 1]));
        assert!(history.of_link(2).iter().all(|level| *level == LOW));
        let last = down.last().unwrap();
        assert_eq!(history.frame(last.id).map(Frame::about), Some(**last));
        assert!(history.frame(0).is_none() && history.frame(u64::MAX).is_none());
        assert!(history.bytes() < 200_000, "{}", history.bytes());
    }

    /// A fabric in which every link changes all the time, with the 128th part of the links of 4 planes of 256 x 256, and of the memory.
    #[test]
    fn memory_is_bounded() {
        let (links, most) = (4 * 256 * 256 / 128, MAX_BYTES / 128);
        let mut history = History::new(most);
        let mut oldest = 0.0;
        for step in 0..250 * MERGED {
            history.push(f64::from((step + 1) * STEP), &noise(links, step));
            assert!(history.bytes() <= most && history.worst.len() <= links);
            let held: usize = history.fine.frames.iter().chain(&history.coarse.frames).map(Frame::size).sum();
            assert_eq!(history.bytes(), held);
            let frames: Vec<_> = history.frames().map(Frame::about).collect();
            for pair in frames.windows(2) {
                let [before, after] = pair else { continue };
                assert!((after.time - f64::from(after.seconds) - before.time).abs() < 1e-9, "{pair:?}");
            }
            let first = frames.first().unwrap().time;
            assert!(first >= oldest);
            oldest = first;
        }
        // Even then more than an hour and a half is there.
        let last = history.frames().last().unwrap().about().time;
        assert!(last - oldest > 5_400.0, "{oldest} {last}");
    }

    fn finding(name: &str, rate: f64) -> FindingReport {
        let part = Part { kind: "link".to_owned(), name: name.to_owned() };
        FindingReport { components: vec![part], rate, since: 7.0, ..FindingReport::default() }
    }

    #[test]
    fn a_fault_is_one_episode_from_its_beginning_to_its_end() {
        let mut episodes = Episodes::default();
        episodes.note(&Event::Opened(finding("a:b", 0.5)));
        episodes.note(&Event::Opened(finding("a:c", 0.5)));
        episodes.note(&Event::Changed(finding("a:b", 1.0), 8.0));
        episodes.note(&Event::Closed(finding("a:b", 1.0), 9.0));
        episodes.note(&Event::Opened(finding("a:b", 0.1)));
        let seen = episodes.iter().map(|episode| {
            (episode.finding.components[0].name.as_str(), episode.finding.rate, episode.until)
        });
        let seen: Vec<_> = seen.collect();
        assert_eq!(seen, [("a:b", 1.0, Some(9.0)), ("a:c", 0.5, None), ("a:b", 0.1, None)]);
        assert_eq!(episodes.bytes, episodes.iter().map(Episode::size).sum::<usize>());
    }

    #[test]
    fn episodes_are_bounded_in_number_and_in_memory() {
        let mut episodes = Episodes::default();
        for number in 0..2 * EPISODES {
            episodes.note(&Event::Opened(finding(&format!("a:{number}"), 0.5)));
        }
        assert_eq!(episodes.iter().count(), EPISODES);
        assert_eq!(episodes.iter().next().unwrap().finding.components[0].name, "a:1000");
        for number in 0..300 {
            let text = "x".repeat(10_000);
            episodes.note(&Event::Opened(FindingReport { text, ..finding(&format!("b:{number}"), 0.5) }));
            let held: usize = episodes.iter().map(Episode::size).sum();
            assert!(held <= EPISODE_BYTES && held == episodes.bytes);
        }
        // The end of one that is not kept any more is.
        episodes.note(&Event::Closed(finding("a:1", 0.5), 9.0));
        assert_eq!(episodes.iter().last().unwrap().until, Some(9.0));
    }
}
