//! Numbered UDP packets, to find losses and their cause: the network, or the test's own socket.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::{NetNs, sys};

const INTERVAL: Duration = Duration::from_millis(1);
const RECEIVE_BUFFER: i32 = 8 << 20;

/// A stream of numbered packets, 1000 a second, until [`stop`](Self::stop).
#[derive(Debug)]
pub struct UdpFlow {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
    sender: JoinHandle<u64>,
    receiver: JoinHandle<Received>,
    /// Set once the sender has ended, for the receiver.
    sender_done: Arc<AtomicBool>,
}

/// The outcome of the packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdpReport {
    /// Packets handed to the kernel: numbers 0 up to this.
    pub sent: u64,
    /// Sends that the kernel refused (also gaps in the numbers).
    pub send_errors: u64,
    /// Different packets that arrived.
    pub received: u64,
    /// Runs of numbers that never arrived, first and last number.
    pub gaps: Vec<(u64, u64)>,
    /// Packets that arrived more than once.
    pub duplicates: u64,
    /// Packets that arrived after a later number.
    pub reordered: u64,
    /// Packets that the receiving socket dropped because its buffer was full:
    /// not zero makes the test itself void.
    pub socket_drops: u64,
    /// The longest time between two arrivals.
    pub longest_pause: Duration,
}

impl UdpReport {
    /// Whether every packet arrived exactly once, and at least one was sent.
    #[must_use]
    pub fn is_perfect(&self) -> bool {
        self.sent > 0
            && self.received == self.sent
            && self.gaps.is_empty()
            && self.duplicates == 0
            && self.send_errors == 0
            && self.socket_drops == 0
    }

    /// Returns the count of packets that never arrived.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.gaps.iter().map(|(first, last)| last - first + 1).sum()
    }
}

#[derive(Debug, Default)]
struct Received {
    seen: Vec<u8>,
    reordered: u64,
    socket_drops: u64,
    longest_pause: Duration,
}

impl UdpFlow {
    /// Starts a flow from `from` to the address `to_ip` in the namespace `to`.
    pub fn start(from: &NetNs, to: &NetNs, to_ip: IpAddr) -> io::Result<Self> {
        Self::through(from, to, SocketAddr::new(to_ip, 0), None)
    }

    /// Starts a flow from `from` to a service's address, received at one of its backends in the namespace `to`; without
    /// a service the flow goes directly to the receiver.
    pub fn through(
        from: &NetNs,
        to: &NetNs,
        backend: SocketAddr,
        service: Option<SocketAddr>,
    ) -> io::Result<Self> {
        let socket = to.run(|| UdpSocket::bind(backend))?;
        sys::receive_buffer(&socket, RECEIVE_BUFFER)?;
        socket.set_read_timeout(Some(Duration::from_millis(20)))?;
        let local = socket.local_addr()?;
        let target = service.unwrap_or(local);
        let any: SocketAddr = if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
        let out = from.run(|| UdpSocket::bind(any).and_then(|s| s.connect(target).map(|()| s)))?;

        let stop = Arc::new(AtomicBool::new(false));
        let sender_done = Arc::new(AtomicBool::new(false));
        let sent = Arc::new(AtomicU64::new(0));
        let received = Arc::new(AtomicU64::new(0));
        let sender = {
            let (stop, sent) = (Arc::clone(&stop), Arc::clone(&sent));
            named("udp-sender", move || send(&out, &stop, &sent))?
        };
        let receiver = {
            let (done, received, ns) = (Arc::clone(&sender_done), Arc::clone(&received), to.clone());
            named("udp-receiver", move || {
                let mut result = receive(&socket, &done, &received);
                result.socket_drops = ns.run(|| socket_drops(local)).unwrap_or(u64::MAX);
                result
            })?
        };
        Ok(Self { stop, sent, received, sender, receiver, sender_done })
    }

    /// Packets sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Packets received so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Stops sending, waits for packets in flight, and returns the counts.
    ///
    /// # Panics
    /// If one of its threads has panicked.
    #[must_use]
    pub fn stop(self) -> UdpReport {
        self.stop.store(true, Ordering::Relaxed);
        let send_errors = self.sender.join().expect("the sender does not panic");
        let sent = self.sent.load(Ordering::Relaxed);
        self.sender_done.store(true, Ordering::Release);
        let received = self.receiver.join().expect("the receiver does not panic");
        report(sent, send_errors, received)
    }
}

fn named<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name(name.to_owned()).spawn(work)
}

fn send(socket: &UdpSocket, stop: &AtomicBool, sent: &AtomicU64) -> u64 {
    let mut errors = 0;
    let mut next = Instant::now();
    let mut number = 0u64;
    while !stop.load(Ordering::Relaxed) {
        if socket.send(&number.to_be_bytes()).is_err() {
            errors += 1;
        }
        number += 1;
        sent.store(number, Ordering::Relaxed);
        next += INTERVAL;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    errors
}

fn receive(socket: &UdpSocket, sender_done: &AtomicBool, count: &AtomicU64) -> Received {
    let mut result = Received::default();
    let mut buffer = [0u8; 16];
    let mut highest = None;
    let mut last_arrival: Option<Instant> = None;
    let mut done_since: Option<Instant> = None;
    loop {
        match socket.recv(&mut buffer) {
            Ok(8) => {
                let mut bytes = [0u8; 8];
                bytes.copy_from_slice(&buffer[..8]);
                let number = u64::from_be_bytes(bytes);
                let now = Instant::now();
                if let Some(last) = last_arrival.replace(now) {
                    result.longest_pause = result.longest_pause.max(now - last);
                }
                if highest.is_some_and(|h| number < h) {
                    result.reordered += 1;
                }
                highest = highest.max(Some(number));
                let index = number as usize;
                if result.seen.len() <= index {
                    result.seen.resize(index + 1, 0);
                }
                result.seen[index] = result.seen[index].saturating_add(1);
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok(_) => {}
            Err(_) if sender_done.load(Ordering::Acquire) => {
                // Packets still on their way get 200 ms of silence.
                let since = *done_since.get_or_insert_with(Instant::now);
                if since.elapsed() > Duration::from_millis(200) {
                    return result;
                }
            }
            Err(_) => {}
        }
    }
}

fn report(sent: u64, send_errors: u64, received: Received) -> UdpReport {
    let mut report = UdpReport {
        sent,
        send_errors,
        reordered: received.reordered,
        socket_drops: received.socket_drops,
        longest_pause: received.longest_pause,
        ..UdpReport::default()
    };
    for number in 0..sent {
        match received.seen.get(number as usize).copied().unwrap_or(0) {
            0 => match report.gaps.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => report.gaps.push((number, number)),
            },
            times => {
                report.received += 1;
                report.duplicates += u64::from(times) - 1;
            }
        }
    }
    report
}

/// The drop counter of the socket bound to `address` in the thread's namespace.
fn socket_drops(address: SocketAddr) -> io::Result<u64> {
    let file = if address.is_ipv4() { "udp" } else { "udp6" };
    // The kernel lists sockets in chunks; one may be missed while others are created and closed.
    for _ in 0..20 {
        let text = std::fs::read_to_string(format!("/proc/thread-self/net/{file}"))?;
        if let Some(drops) = parse_drops(&text, address.port()) {
            return Ok(drops);
        }
    }
    Err(io::Error::other(format!("no socket on port {}", address.port())))
}

fn parse_drops(table: &str, port: u16) -> Option<u64> {
    let suffix = format!(":{port:04X}");
    let line = table
        .lines()
        .skip(1)
        .find(|line| line.split_whitespace().nth(1).is_some_and(|a| a.ends_with(&suffix)))?;
    line.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_duplicates_are_counted() {
        let received = Received { seen: vec![1, 0, 0, 2, 1], ..Received::default() };
        let report = report(7, 0, received);
        assert_eq!(report.gaps, [(1, 2), (5, 6)]);
        assert_eq!((report.lost(), report.received, report.duplicates), (4, 3, 1));
        assert!(!report.is_perfect());
    }

    #[test]
    fn drops_are_found_by_port() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
            11: 0200000A:1F90 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 5 2 0000000000000000 42\n";
        assert_eq!(parse_drops(table, 8080), Some(42));
        assert_eq!(parse_drops(table, 8081), None);
    }
}
