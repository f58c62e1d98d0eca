//! A web server with a graceful stop: it takes no new connections, answers the requests that it has, and then ends.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hive::Service;
use hive::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[derive(hive::Config)]
struct ServerConfig {
    /// Address to listen at
    #[flag(default = "127.0.0.1:8080")]
    listen: String,
    /// Time for requests to end when the server stops
    #[flag(default = "10s")]
    drain_timeout: Duration,
}

struct Server {
    config: Config<ServerConfig>,
    jobs: JobGroup,
    address: OnceLock<SocketAddr>,
}

impl Service for Server {
    /// Listens here and not in the job, so that an address in use is an error of the start.
    async fn start(&self, _cx: HookCx) -> anyhow::Result<()> {
        let address = &self.config.listen;
        let listener = TcpListener::bind(address).await.with_context(|| format!("listen at {address}"))?;
        let _first = self.address.set(listener.local_addr()?);
        self.jobs
            .one_shot("serve", |cx: JobCx| serve(listener, cx))
            .grace(self.config.drain_timeout)
            .shutdown_on_error()
            .add();
        Ok(())
    }
}

async fn serve(listener: TcpListener, cx: JobCx) -> anyhow::Result<()> {
    let mut requests = FuturesUnordered::new();
    loop {
        tokio::select! {
            () = cx.cancelled() => break,
            Some(_) = requests.next() => {}
            accepted = listener.accept() => requests.push(answer(accepted?.0)),
        }
    }
    drop(listener);
    while requests.next().await.is_some() {}
    Ok(())
}

/// Reads a request up to the empty line behind its headers. A real program has a crate for HTTP here.
async fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = vec![];
    while !request.ends_with(b"\r\n\r\n") {
        if request.len() > 8192 || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nhello\n").await
}

fn new_server(config: Config<ServerConfig>, jobs: JobGroup, lifecycle: Lifecycle) -> Arc<Server> {
    let server = Arc::new(Server { config, jobs, address: OnceLock::new() });
    lifecycle.service("server", &server).add();
    server
}

fn cells() -> Cell {
    let cells = [config::<ServerConfig>(), provide(new_server), invoke(|_: Arc<Server>| ())];
    module("server", "Answers requests", cells)
}

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    Hive::builder(cells()).process("SERVER_").main().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_that_has_begun_is_answered_during_the_stop() {
        let mut hive = TestHive::new(cells()).set("listen", "127.0.0.1:0");
        hive.start().await;
        let address = *hive.hive().get::<Server>().unwrap().address.get().unwrap();
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        let rest = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(TcpStream::connect(address).await.is_err(), "no new connections during the stop");
            client.write_all(b"\r\n").await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let ((), answer) = tokio::join!(hive.stop(), rest);
        assert!(answer.ends_with("hello\n"), "{answer}");
    }

    #[tokio::test]
    async fn an_address_in_use_is_an_error_of_the_start() {
        let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = other.local_addr().unwrap();
        let mut hive = TestHive::new(cells()).set("listen", address);
        let error = hive.try_start().await.unwrap_err().to_string();
        assert!(error.contains(&format!("listen at {address}: ")), "{error}");
    }
}
