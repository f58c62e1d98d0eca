//! The rings of a map.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::event::PerfEvent;
use super::mapping::Mapping;
use super::pacing::{Pacing, Wakeup};
use super::record::{Record, Records};
use crate::clock::monotonic;
use crate::error::{Error, Result};
use crate::raw_map::{RawMap, UpdateMode, online_cpus};

/// The part of a ring that has been filled when its reader is woken by the watermark: the rest is for what comes until
/// it reads. Records that need it sooner than the next poll come at 40 MB/s a CPU (64 pages).
const WATERMARK_DIVISOR: usize = 2;
/// The part of a ring after which a read gives space back to the kernel. Not at each record: the position shares a
/// cache line with that of the kernel.
const RELEASE_DIVISOR: usize = 8;

/// The wake-ups of the rings of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wakeups {
    /// Each record wakes the reader: for records that come seldom.
    EachRecord,
    /// Records wake the reader while few come; rings with many are polled.
    Paced,
}

/// The rings of the CPUs that are online, in the map until they are dropped.
#[derive(Debug)]
pub struct Rings {
    map: RawMap,
    rings: Vec<Ring>,
}

#[derive(Debug)]
struct Ring {
    cpu: u32,
    mapping: Mapping,
    /// The event that has the mapping.
    by_watermark: PerfEvent,
    by_record: PerfEvent,
    pacing: Option<Pacing>,
    wakeup: Wakeup,
}

impl Rings {
    /// Opens a ring of so many pages, a power of two, for each CPU, and puts it into the map: in place of another one
    /// there. The kernel removes the rings when the file is closed by which they were put there. The handle is to have
    /// one of its own, as [`RawMap::open`] and [`RawMap::open_id`] make it: then this is when the value is dropped, also
    /// by the kill of the process.
    pub fn open(map: RawMap, pages: usize, wakeups: Wakeups) -> Result<Self> {
        let cpus = online_cpus()?;
        let open = |cpu| {
            let ring = Ring::open(cpu, pages, wakeups);
            let ring = ring.map_err(|e| Error::syscall("open ring", format!("of CPU {cpu}"), e))?;
            ring.attach(&map)?;
            Ok(ring)
        };
        let rings = cpus.into_iter().map(open).collect::<Result<_>>()?;
        Ok(Self { map, rings })
    }

    /// Returns the number of rings.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rings.len()
    }

    /// Whether there are no rings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    /// Reads the records of all rings that were written before: those of a CPU in their order, one CPU after the other.
    pub fn read(&mut self, mut visit: impl FnMut(u32, Record<'_>)) -> Result<()> {
        for ring in &mut self.rings {
            let records = ring.read(&mut visit);
            let Some(pacing) = &mut ring.pacing else { continue };
            let wakeup = pacing.note(monotonic(), records);
            if wakeup != ring.wakeup {
                ring.wakeup = wakeup;
                ring.attach(&self.map)?;
            }
        }
        Ok(())
    }

    /// Whether a ring has to be read [`POLL_INTERVAL`](super::POLL_INTERVAL) after the last read, although no wake-up
    /// comes.
    #[must_use]
    pub fn are_polled(&self) -> bool {
        self.rings.iter().any(|ring| ring.pacing.as_ref().is_some_and(Pacing::is_polled))
    }

    /// Returns the descriptors that are readable when a ring wakes its reader (poll(2)).
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(|ring| ring.by_watermark.as_fd())
    }
}

impl Ring {
    fn open(cpu: u32, pages: usize, wakeups: Wakeups) -> io::Result<Self> {
        let watermark = pages.saturating_mul(super::page_size()) / WATERMARK_DIVISOR;
        let watermark = u32::try_from(watermark).unwrap_or(u32::MAX);
        let by_watermark = PerfEvent::waking_by_watermark(cpu, watermark)?;
        let mapping = Mapping::new(by_watermark.as_fd(), pages)?;
        let by_record = PerfEvent::waking_by_record(cpu)?;
        by_record.redirect(&by_watermark)?;
        let pacing = (wakeups == Wakeups::Paced).then(Pacing::new);
        Ok(Self { cpu, mapping, by_watermark, by_record, pacing, wakeup: Wakeup::Record })
    }

    /// Puts the event with the ring's kind of wake-up into the map.
    fn attach(&self, map: &RawMap) -> Result<()> {
        let event = match self.wakeup {
            Wakeup::Record => &self.by_record,
            Wakeup::Watermark => &self.by_watermark,
        };
        let descriptor = event.as_fd().as_raw_fd();
        map.update(&self.cpu.to_ne_bytes(), &descriptor.to_ne_bytes(), UpdateMode::Any)
    }

    /// Reads the records that were written before; returns their number.
    fn read(&mut self, visit: &mut impl FnMut(u32, Record<'_>)) -> u64 {
        let portion = self.mapping.len() / RELEASE_DIVISOR;
        let (mut records, mut left) = (0, self.mapping.available());
        while left > 0 {
            let filled = self.mapping.filled(left);
            let mut unread = Records::new(filled);
            let read = |unread: &Records<'_>| filled.len() - unread.unread();
            while read(&unread) < portion
                && let Some(record) = unread.next()
            {
                records += 1;
                visit(self.cpu, record);
            }
            let read = read(&unread);
            left -= read;
            self.mapping.release(read);
        }
        records
    }
}
