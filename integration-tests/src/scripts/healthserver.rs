//! The load balancer with servers of `healthCheckNodePort`, on a loopback address of their own.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ::loadbalancer::{ProxyRedirect, ServiceName, ServicesWriter};
use anyhow::{Context, bail};
use hive::prelude::*;
use hive_command::{Call, Command, Output};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::loadbalancer;
use super::run::Environment;

/// Beside those of the load balancer.
pub(super) const DEFAULTS: &[&str] = &["--enable-health-check-loadbalancer-ip=true"];

/// Nothing fails on purpose.
pub(super) const FAULTLESS: &[&str] = &["--lb-test-fault-probability=0"];

pub(super) fn cells(maps: Cell) -> Vec<Cell> {
    let address = address();
    let environment = Arc::new(Environment(vec![("HEALTHADDR", address.to_string())]));
    let mut cells = loadbalancer::cells_at(maps, address);
    cells.extend([
        supply(environment),
        module(
            "healthserver-test-commands",
            "Functions of load balancers and proxies",
            [provide(get), provide(set_proxy_redirect), invoke(|_: Arc<Environment>| ())],
        ),
    ]);
    cells
}

/// A loopback address for each hive: the first is by the process's number as Cilium's, others are apart from it.
pub(super) fn address() -> IpAddr {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let apart = COUNT.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x2006);
    let [_, a, b, c] = std::process::id().wrapping_add(apart).to_be_bytes();
    Ipv4Addr::new(127, a | 1, b, c | 1).into()
}

fn get() -> Member<Command> {
    let run = |call: Call| async move {
        let [url, file] = call.exactly()?;
        let text = fetch(url).await.with_context(|| url.to_owned())?;
        call.write(file, text)?;
        Ok(Output::none())
    };
    Member(Command::new("http/get", "write the answer of an HTTP server to a file", run).takes("url file"))
}

/// Status, headers by name, `---`, body.
async fn fetch(url: &str) -> anyhow::Result<String> {
    let rest = url.strip_prefix("http://").context("only http:// is known")?;
    let (host, path) = match rest.find(['/', '?']) {
        Some(at) => rest.split_at(at),
        None => (rest, "/"),
    };
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut stream = TcpStream::connect(host).await?;
    let request = format!("GET {slash}{path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let (mut answer, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(text) = shown(&answer)? {
            return Ok(text);
        }
        match stream.read(&mut chunk).await? {
            0 => bail!("the answer ends too early: {:?}", String::from_utf8_lossy(&answer)),
            count => answer.extend_from_slice(&chunk[..count]),
        }
    }
}

/// The answer as it is shown, once it is there as a whole.
fn shown(answer: &[u8]) -> anyhow::Result<Option<String>> {
    let text = str::from_utf8(answer)?;
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return Ok(None) };
    let mut lines = head.split("\r\n");
    let (_, status) = lines.next().and_then(|line| line.split_once(' ')).context("no status")?;
    let mut headers: Vec<(String, String)> = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':').with_context(|| format!("{line:?} is no header"))?;
        let (name, value) = (canonical(name), value.trim());
        match headers.iter_mut().find(|(known, _)| *known == name) {
            Some((_, values)) => *values = format!("{values}, {value}"),
            None => headers.push((name, value.to_owned())),
        }
    }
    headers.sort();
    let length = headers.iter().find(|(name, _)| name == "Content-Length");
    let length: usize = length.context("no Content-Length")?.1.parse()?;
    if body.len() < length {
        return Ok(None);
    }
    let mut text = format!("{status}\n");
    for (name, value) in headers {
        let value = if name == "Date" { "<omitted>" } else { &value };
        text += &format!("{name}={value}\n");
    }
    Ok(Some(format!("{text}---\n{body}")))
}

/// `content-type` as `Content-Type`.
fn canonical(name: &str) -> String {
    let mut start = true;
    let letter = |c: char| {
        let letter = if start { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() };
        start = c == '-';
        letter
    };
    name.chars().map(letter).collect()
}

fn set_proxy_redirect(writer: Arc<ServicesWriter>) -> Member<Command> {
    let run = move |call: Call| {
        let writer = writer.clone();
        async move {
            let (service, port) = match &call.args[..] {
                [service] => (service, 10_000),
                [service, port] => (service, port.parse().with_context(|| format!("{port}: is no port"))?),
                _ => bail!("expected namespace/name [port]"),
            };
            let (namespace, name) =
                service.split_once('/').with_context(|| format!("{service}: is not NAMESPACE/NAME"))?;
            let redirect = ProxyRedirect { proxy_port: port, ports: vec![80, 443] };
            let mut txn = writer.write();
            if !txn.set_proxy_redirects(&ServiceName::new(namespace, name), vec![redirect]) {
                bail!("there is no service {service}");
            }
            txn.commit();
            Ok(Output::text(format!("Set ProxyRedirect (port={port}) on service {service}\n")))
        }
    };
    let command = Command::new("svc/set-proxy-redirect", "have a proxy take connections of a service", run);
    Member(command.takes("namespace/name [port]"))
}
