//! Packets that carry their send time, to measure how long traffic was interrupted.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use crate::{NetNs, sys};

/// Interval of packets: 5,000 per second.
const INTERVAL: Duration = Duration::from_micros(200);
const RECEIVE_BUFFER: i32 = 32 << 20;
/// Time for packets in flight when the sender ends.
const SILENCE: Duration = Duration::from_millis(200);

/// A stream of packets, 5,000 per second, until [`stop`](Self::stop). The kernel timestamps arrivals, so that a
/// receiver that waits for a CPU does not count as a stall.
#[derive(Debug)]
pub struct StallFlow {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<Vec<Duration>>,
    receiver: JoinHandle<Vec<(Duration, Duration)>>,
}

/// The outcome of the packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StallReport {
    /// Packets sent.
    pub sent: usize,
    /// Packets that never arrived.
    pub lost: usize,
    /// The longest time from the sending of a packet to the next arrival of it or of a later one.
    pub longest: Duration,
}

impl StallFlow {
    /// Starts a flow from `from` to the address `to_ip` in the namespace `to`.
    pub fn start(from: &NetNs, to: &NetNs, to_ip: IpAddr) -> io::Result<Self> {
        let target = to.run(|| UdpSocket::bind((to_ip, 0)))?;
        sys::receive_buffer(&target, RECEIVE_BUFFER)?;
        sys::stamp_arrivals(&target)?;
        target.set_read_timeout(Some(SILENCE))?;
        let any = if to_ip.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = from.run(|| UdpSocket::bind(any))?;
        socket.connect(target.local_addr()?)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, done) = (Arc::clone(&stop), Arc::clone(&stop));
        let thread = |name: &str| thread::Builder::new().name(name.to_owned());
        let sender = thread("stall-sender").spawn(move || send(&socket, &stopped))?;
        let receiver = thread("stall-receiver").spawn(move || receive(&target, &done))?;
        Ok(Self { stop, sender, receiver })
    }

    /// Ends the flow, and waits for packets in flight.
    ///
    /// # Panics
    /// If one of its threads has panicked.
    #[must_use]
    pub fn stop(self) -> StallReport {
        self.stop.store(true, Ordering::Relaxed);
        let sent = self.sender.join().expect("the sender does not panic");
        let received = self.receiver.join().expect("the receiver does not panic");
        report(&sent, received)
    }
}

/// Returns the time by the clock of the kernel's timestamps.
fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn send(socket: &UdpSocket, stop: &AtomicBool) -> Vec<Duration> {
    let mut sent = Vec::new();
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let at = now();
        if socket.send(&(at.as_nanos() as u64).to_be_bytes()).is_ok() {
            sent.push(at);
        }
        // Do not catch up for time without a CPU: a burst would overflow queues.
        next = (next + INTERVAL).max(Instant::now() - 10 * INTERVAL);
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    sent
}

/// Returns send and arrival time of each packet, until there is silence after the end.
fn receive(socket: &UdpSocket, stop: &AtomicBool) -> Vec<(Duration, Duration)> {
    let mut received = Vec::new();
    let mut buffer = [0; 8];
    loop {
        match sys::receive_stamped(socket, &mut buffer) {
            Ok((8, arrived)) => received.push((Duration::from_nanos(u64::from_be_bytes(buffer)), arrived)),
            Ok(_) => {}
            Err(_) if stop.load(Ordering::Relaxed) => return received,
            Err(_) => {}
        }
    }
}

fn report(sent: &[Duration], mut received: Vec<(Duration, Duration)>) -> StallReport {
    received.sort_unstable();
    let lost = sent.iter().filter(|at| received.binary_search_by_key(at, |(sent, _)| sent).is_err()).count();
    let mut longest = Duration::ZERO;
    let mut next = None;
    let mut rest = received.iter().rev().peekable();
    for at in sent.iter().rev() {
        while let Some((_, arrived)) = rest.next_if(|(sent, _)| sent >= at) {
            next = Some(next.map_or(*arrived, |next: Duration| next.min(*arrived)));
        }
        // No arrival ends a stall after the last one: those packets are lost and counted as such.
        longest = longest.max(next.map_or(Duration::ZERO, |next| next.saturating_sub(*at)));
    }
    StallReport { sent: sent.len(), lost, longest }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn a_lost_packet_stalls_until_the_next_arrives() {
        let sent = [us(0), us(200), us(400), us(600)];
        let all: Vec<_> = sent.iter().map(|at| (*at, *at + us(5))).collect();
        assert_eq!(report(&sent, all.clone()), StallReport { sent: 4, lost: 0, longest: us(5) });
        let without_two = vec![all[0], all[3]];
        assert_eq!(report(&sent, without_two), StallReport { sent: 4, lost: 2, longest: us(405) });
        let held_up = vec![all[0], (us(200), us(900)), (us(400), us(900)), (us(600), us(901))];
        assert_eq!(report(&sent, held_up), StallReport { sent: 4, lost: 0, longest: us(700) });
        assert_eq!(report(&sent, all[..1].to_vec()).lost, 3);
    }
}
