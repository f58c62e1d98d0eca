//! `monitor`: events of the datapath and of the agent as they happen, from the agent's `monitor1_2.sock`.

use crate::client::Agent;
use crate::commands::statedb::rows;
use anyhow::{Context as _, bail};
use api_models::StatusResponse;
use clap::{ArgAction, Args};
use monitor_events::gob::{Payload, Reader};
use monitor_events::{Filter, Format, Kind, LinkNames, PolicyTexts, Printer};
use rustix::net::{AddressFamily, SocketType, netdevice, socket};
use serde::Deserialize;
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read as _, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The name of the socket, beside that of the API.
const SOCKET: &str = "monitor1_2.sock";

/// The folder of the socket for an API on TCP.
const DEFAULT_FOLDER: &str = "/var/run/cilium";

/// Where the socket is, for all clients.
const SOCKET_VARIABLE: &str = "CILIUM_MONITOR_SOCK";

/// The pause before another connection is tried after the agent has closed one.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);

/// The pause between two requests for the texts of policies, if an event names one that is not known.
const TEXTS_INTERVAL: Duration = Duration::from_secs(1);

/// How long the name of a link is kept.
const NAME_AGE: Duration = Duration::from_secs(15);

#[derive(Debug, Args)]
pub(crate) struct MonitorOptions {
    /// Filter by event types: agent, capture, debug, drop, l7, policy-verdict, trace, trace-sock
    #[arg(short = 't', long = "type", value_name = "TYPE", value_delimiter = ',', value_parser = kind)]
    kinds: Vec<Kind>,
    /// Filter by source endpoint id
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    from: Vec<u16>,
    /// Filter by destination endpoint id
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    to: Vec<u16>,
    /// Filter by either source or destination endpoint id
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    related_to: Vec<u16>,
    /// Enable verbose output, twice for all layers of packets
    #[arg(short, long, action = ArgAction::Count)]
    verbose: u8,
    /// Enable json output. Shadows -v flag
    #[arg(short, long)]
    json: bool,
    /// Display all security identities as numeric values
    #[arg(short, long)]
    numeric: bool,
    /// Do not dissect, print payload in HEX; with -v -v
    #[arg(long)]
    hex: bool,
    /// Configure monitor socket path (default: CILIUM_MONITOR_SOCK, else beside the agent's socket)
    #[arg(long, value_name = "PATH")]
    monitor_socket: Option<PathBuf>,
}

fn kind(word: &str) -> Result<Kind, String> {
    let found = Kind::ALL.iter().find(|(name, _)| *name == word);
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        let names: Vec<&str> = Kind::ALL.iter().map(|(name, _)| *name).collect();
        format!("unknown type ({word}), please use one of {}", names.join(", "))
    })
}

/// Prints events until the output is closed. Connects again when the agent restarts.
pub(crate) fn run(agent: &mut Agent, options: &MonitorOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let path = options.monitor_socket.clone().unwrap_or_else(|| usual_socket(agent));
    let filter = Filter {
        kinds: options.kinds.clone(),
        from: options.from.clone(),
        to: options.to.clone(),
        related: options.related_to.clone(),
    };
    let format = match options.verbose {
        _ if options.json => Format::Json,
        0 => Format::Brief,
        1 => Format::Verbose,
        _ => Format::Debug,
    };
    let links = Box::new(OwnLinks::new());
    let texts = Box::new(AgentTexts::new(Agent::at(agent.address().clone())));
    let printer = Printer { format, numeric: options.numeric, hex: options.hex, links, texts };
    let mut stream = UnixStream::connect(&path)
        .with_context(|| format!("cannot connect to the monitor at {}", path.display()))?;
    let mut notes = io::stderr();
    // Fails if standard error is closed, which is no reason to print no events.
    let _ = writeln!(notes, "{}\nPress Ctrl-C to quit", greeting(agent));
    loop {
        follow(&mut stream, &printer, &filter, out)?;
        let _ = writeln!(notes, "The agent has closed the connection, trying to connect again");
        stream = reconnect(&path)?;
        let _ = writeln!(notes, "Connected again");
    }
}

/// Returns the path in `CILIUM_MONITOR_SOCK`, or that beside the API's socket.
pub(crate) fn usual_socket(agent: &Agent) -> PathBuf {
    match std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => path.into(),
        None => match agent.socket() {
            Some(api) => api.with_file_name(SOCKET),
            None => Path::new(DEFAULT_FOLDER).join(SOCKET),
        },
    }
}

/// Returns how the agent reads events, if its API answers.
fn greeting(agent: &mut Agent) -> String {
    let status = agent.get::<StatusResponse>("/healthz");
    match status.ok().and_then(|status| status.node_monitor) {
        Some(monitor) => format!(
            "Listening for events on {} CPUs with {}x{} of shared memory",
            monitor.cpus, monitor.npages, monitor.pagesize
        ),
        None => "Listening for events".to_owned(),
    }
}

/// Connects, with retries for as long as the agent is down.
fn reconnect(path: &Path) -> anyhow::Result<UnixStream> {
    loop {
        std::thread::sleep(RECONNECT_INTERVAL);
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
            Err(error) => bail!("cannot connect to the monitor at {}: {error}", path.display()),
        }
    }
}

/// Prints the events of a connection until the agent closes it.
fn follow(
    stream: &mut UnixStream,
    printer: &Printer,
    filter: &Filter,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let (mut reader, mut buffer) = (Reader::default(), vec![0; 64 << 10]);
    loop {
        let count = match stream.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error).context("the connection to the monitor failed"),
        };
        reader.push(&buffer[..count]);
        while let Some(value) = reader.next_value().context("the monitor's stream cannot be decoded")? {
            if let Some(text) = printer.payload(&Payload::from(value), filter) {
                out.write_all(text.as_bytes())?;
            }
        }
        out.flush()?;
    }
}

/// Names of the links in this network namespace, asked of the kernel and kept for a while.
#[derive(Debug)]
struct OwnLinks {
    /// A socket of any kind answers; without one, links are numbers.
    socket: Option<OwnedFd>,
    names: RefCell<HashMap<u32, (Instant, Option<String>)>>,
}

impl OwnLinks {
    fn new() -> Self {
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)
            .or_else(|_| socket(AddressFamily::UNIX, SocketType::DGRAM, None));
        Self { socket: socket.ok(), names: RefCell::default() }
    }
}

impl LinkNames for OwnLinks {
    fn name(&self, ifindex: u32) -> Option<String> {
        let socket = self.socket.as_ref().filter(|_| ifindex != 0)?;
        let mut names = self.names.borrow_mut();
        let now = Instant::now();
        if let Some((time, name)) = names.get(&ifindex)
            && name.is_some()
            && now.duration_since(*time) < NAME_AGE
        {
            return name.clone();
        }
        // Links come and go; those without events of the last moments need not be known.
        names.retain(|_, (time, _)| now.duration_since(*time) < NAME_AGE);
        let name = netdevice::index_to_name(socket, ifindex).ok();
        names.insert(ifindex, (now, name.clone()));
        name
    }
}

/// Texts of policies, from the agent's table.
#[derive(Debug)]
struct AgentTexts(RefCell<KnownTexts>);

#[derive(Debug)]
struct KnownTexts {
    agent: Agent,
    texts: HashMap<u32, Vec<String>>,
    asked: Option<Instant>,
}

/// A row of the table `policy-logs`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct LogRow {
    cookie: u32,
    texts: Vec<String>,
}

impl AgentTexts {
    fn new(agent: Agent) -> Self {
        Self(RefCell::new(KnownTexts { agent, texts: HashMap::new(), asked: None }))
    }
}

impl PolicyTexts for AgentTexts {
    fn texts(&self, cookie: u32) -> Vec<String> {
        let mut known = self.0.borrow_mut();
        let may_ask = known.asked.is_none_or(|asked| asked.elapsed() >= TEXTS_INTERVAL);
        if may_ask && !known.texts.contains_key(&cookie) {
            known.asked = Some(Instant::now());
            // Of an agent that does not answer, or is Cilium's, lines have no texts.
            if let Ok(rows) = rows::<LogRow>(&mut known.agent, "policy-logs") {
                // A cookie keeps its texts, so those of released ones stay right for events that are under way.
                known.texts.extend(rows.into_iter().map(|row| (row.cookie, row.texts)));
            }
        }
        known.texts.get(&cookie).cloned().unwrap_or_default()
    }
}
