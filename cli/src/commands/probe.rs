//! `probe`: both ends of a flow, for the pods of `connectivity check`: a server that answers TCP and UDP, and a client
//! that reports which targets it reaches.

use std::io::{self, Read as _, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};

/// Begins requests and answers, so that another server on the port is not taken for this one.
const GREETING: &[u8] = b"apiary-probe\n";
/// How long one attempt waits for an answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);
/// The delay between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Attempts in a row without an answer until a target counts as not reached.
const SILENT_ATTEMPTS: usize = 2;

#[derive(Debug, Subcommand)]
pub(crate) enum ProbeCommand {
    /// Answer probes by TCP and UDP until the process is ended
    Serve {
        /// Port of both protocols
        #[arg(long, default_value_t = PORT)]
        port: u16,
    },
    /// Probe targets until each is as expected or the time is over; fails if one is not
    Run(RunOptions),
}

/// The port of servers.
pub(crate) const PORT: u16 = 8080;

#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// File for the results as JSON, in the order of the targets (default: standard output)
    #[arg(long)]
    report: Option<PathBuf>,
    /// Seconds until a target that is not as expected is given up
    #[arg(long, default_value_t = 30)]
    timeout: u64,
    /// allowed:tcp://ADDRESS:PORT, denied:udp://ADDRESS:PORT, ...
    #[arg(required = true)]
    targets: Vec<Target>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

/// A server, and whether it should be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    is_allowed: bool,
    protocol: Protocol,
    address: SocketAddr,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let parsed = || {
            let (expectation, rest) = text.split_once(':')?;
            let (protocol, address) = rest.split_once("://")?;
            let protocol = match protocol {
                "tcp" => Protocol::Tcp,
                "udp" => Protocol::Udp,
                _ => return None,
            };
            let is_allowed = match expectation {
                "allowed" => true,
                "denied" => false,
                _ => return None,
            };
            Some(Target { is_allowed, protocol, address: address.parse().ok()? })
        };
        parsed().ok_or_else(|| "want allowed:tcp://ADDRESS:PORT, udp or denied likewise".to_owned())
    }
}

/// The outcome of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reached {
    /// Whether the last attempt was answered.
    pub(crate) reached: bool,
    /// The error of the last attempt without an answer.
    pub(crate) error: String,
}

pub(crate) fn run(command: &ProbeCommand, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    match command {
        ProbeCommand::Serve { port } => serve(*port).context("cannot serve").map(|()| ExitCode::SUCCESS),
        ProbeCommand::Run(options) => probe(options, out),
    }
}

/// Answers one request at a time; never returns but with an error of its sockets.
fn serve(port: u16) -> io::Result<()> {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let any_v4 = SocketAddr::from(([0, 0, 0, 0], port));
    let listener = TcpListener::bind(any).or_else(|_| TcpListener::bind(any_v4))?;
    let socket = UdpSocket::bind(any).or_else(|_| UdpSocket::bind(any_v4))?;
    listener.set_nonblocking(true)?;
    socket.set_nonblocking(true)?;
    loop {
        poll(&mut [PollFd::new(&listener, PollFlags::IN), PollFd::new(&socket, PollFlags::IN)], None)?;
        if let Ok((mut connection, _)) = listener.accept() {
            // A client that is gone or silent is its own problem.
            let _ = answer(&mut connection);
        }
        let mut request = [0; GREETING.len()];
        if let Ok((length, source)) = socket.recv_from(&mut request)
            && request[..length] == *GREETING
        {
            let _ = socket.send_to(GREETING, source);
        }
    }
}

fn answer(connection: &mut TcpStream) -> io::Result<()> {
    connection.set_nonblocking(false)?;
    connection.set_read_timeout(Some(ATTEMPT_TIMEOUT))?;
    let mut request = [0; GREETING.len()];
    connection.read_exact(&mut request)?;
    if request == *GREETING { connection.write_all(GREETING) } else { Ok(()) }
}

fn probe(options: &RunOptions, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let deadline = Instant::now() + Duration::from_secs(options.timeout);
    let results: Vec<Reached> =
        options.targets.iter().map(|target| until_expected(target, deadline)).collect();
    let json = serde_json::to_string(&results)?;
    match &options.report {
        Some(path) => {
            std::fs::write(path, &json).with_context(|| format!("cannot write {}", path.display()))?
        }
        None => writeln!(out, "{json}")?,
    }
    let is_expected =
        options.targets.iter().zip(&results).all(|(target, got)| target.is_allowed == got.reached);
    Ok(if is_expected { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Repeats attempts: services and policies reach the nodes a moment after the pods run.
fn until_expected(target: &Target, deadline: Instant) -> Reached {
    let mut silent = 0;
    loop {
        let result = attempt(target);
        silent = if result.is_ok() { 0 } else { silent + 1 };
        let is_expected = if target.is_allowed { result.is_ok() } else { silent >= SILENT_ATTEMPTS };
        if is_expected || Instant::now() >= deadline {
            let error = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
            return Reached { reached: result.is_ok(), error };
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
}

fn attempt(target: &Target) -> io::Result<()> {
    let mut answer = [0; GREETING.len()];
    match target.protocol {
        Protocol::Tcp => {
            let mut stream = TcpStream::connect_timeout(&target.address, ATTEMPT_TIMEOUT)?;
            stream.set_read_timeout(Some(ATTEMPT_TIMEOUT))?;
            stream.write_all(GREETING)?;
            stream.read_exact(&mut answer)?;
        }
        Protocol::Udp => {
            let any = if target.address.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
            let socket = UdpSocket::bind(any)?;
            socket.connect(target.address)?;
            socket.set_read_timeout(Some(ATTEMPT_TIMEOUT))?;
            socket.send(GREETING)?;
            socket.recv(&mut answer)?;
        }
    }
    match answer == *GREETING {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidData, "another server answers")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_parsed() {
        let target: Target = "denied:udp://[fd00::1]:53".parse().unwrap();
        assert_eq!((target.is_allowed, target.protocol), (false, Protocol::Udp));
        assert_eq!(target.address.to_string(), "[fd00::1]:53");
        for wrong in
            ["tcp://1.2.3.4:5", "allowed:sctp://1.2.3.4:5", "allowed:tcp://host:5", "maybe:tcp://1.2.3.4:5"]
        {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }
}
