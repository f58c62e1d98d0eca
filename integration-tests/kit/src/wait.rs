//! Waiting for a condition, and free ports.

use std::io;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// Factor for the limits of waits on machines that are many times slower than usual, such as emulated ones.
const TIME_FACTOR: &str = "APIARY_TIME_FACTOR";

fn time_factor() -> u32 {
    std::env::var(TIME_FACTOR).map_or(1, |value| {
        value.parse().unwrap_or_else(|_| panic!("{TIME_FACTOR}={value}: not a positive integer"))
    })
}

/// Polls `probe` every few milliseconds until it returns a value; returns the last
/// error text when `limit`, multiplied by `$APIARY_TIME_FACTOR`, has passed.
pub fn try_wait_until<T>(limit: Duration, mut probe: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let limit = limit * time_factor();
    let deadline = Instant::now() + limit;
    loop {
        match probe() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() >= deadline => {
                return Err(format!("after {limit:?}: {error}"));
            }
            Err(_) => thread::sleep(Duration::from_millis(3)),
        }
    }
}

/// Polls `condition` until it holds.
///
/// # Panics
/// If `limit` has passed; the message names `what`.
#[track_caller]
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let result = try_wait_until(limit, || if condition() { Ok(()) } else { Err(format!("{what}: not yet")) });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Returns a port that is free for TCP and UDP on `ip` in the thread's namespace right
/// now; the kernel does not reuse it soon.
pub fn free_port(ip: IpAddr) -> io::Result<u16> {
    let mut last = io::Error::other("no free port");
    for _ in 0..32 {
        let port = TcpListener::bind((ip, 0))?.local_addr()?.port();
        match UdpSocket::bind((ip, port)) {
            Ok(_) => return Ok(port),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_last_error() {
        let mut calls = 0;
        let error = try_wait_until(Duration::from_millis(20), || {
            calls += 1;
            Err::<(), _>(format!("call {calls}"))
        })
        .unwrap_err();
        assert!(calls > 1 && error.ends_with(&format!("call {calls}")), "{error}");
    }

    #[test]
    fn a_free_port_can_be_bound() {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let port = free_port(ip).unwrap();
        TcpListener::bind((ip, port)).unwrap();
    }
}
