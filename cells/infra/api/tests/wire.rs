//! The server over a real unix socket: bytes as Cilium sends them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use api::{Operation, Request, Response, Route};
use hive::TestHive;
use hive::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

struct Server {
    hive: TestHive,
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

impl Server {
    async fn end(mut self) {
        self.hive.stop().await;
    }

    async fn start(options: &[(&str, &str)], routes: Vec<Route>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cilium.sock");
        let cells = [metrics::cell(), api::cell(), supply(Members(routes))];
        let mut hive = TestHive::new(cells).set("socket-path", socket.display());
        for (key, value) in options {
            hive = hive.set(key, value);
        }
        hive.start().await;
        Self { hive, socket, _folder: folder }
    }

    /// Sends `head` with the usual headers and a body; returns the whole answer without its date.
    async fn ask(&self, head: &str, body: &str) -> String {
        let mut request = format!("{head}\r\nHost: localhost\r\nConnection: close\r\n");
        if !body.is_empty() {
            request += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        self.send(&format!("{request}\r\n{body}")).await
    }

    async fn send(&self, bytes: &str) -> String {
        let mut stream = UnixStream::connect(&self.socket).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let lines: Vec<_> = answer.split("\r\n").filter(|line| !line.starts_with("Date: ")).collect();
        lines.join("\r\n").replace("Connection: close\r\n", "")
    }
}

fn route<F, Fut>(operation: Operation, handler: F) -> Route
where
    F: Fn(Request) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Response> + Send + 'static,
{
    Route::new(operation, handler)
}

/// The answers that `errors.txt` and the feature-off samples record.
#[tokio::test]
async fn errors_have_ciliums_bytes() {
    let endpoint = route(Operation::GetEndpointID, |request: Request| async move {
        let prefix = request.param("id").split_once(':').map_or("", |(prefix, _)| prefix).to_owned();
        Response::error(400, format!("unknown endpoint ID prefix {prefix:?}"))
    });
    let server = Server::start(&[], vec![endpoint]).await;
    for (request, body, answer) in [
        (
            "GET /v1/nope HTTP/1.1",
            "",
            "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 52\r\n\r\n\
             {\"code\":404,\"message\":\"path /v1/nope was not found\"}",
        ),
        (
            "PUT /v1/healthz HTTP/1.1",
            "",
            "HTTP/1.1 405 Method Not Allowed\r\nContent-Type: application/json\r\nAllow: GET\r\nContent-Length: 65\r\n\r\n\
             {\"code\":405,\"message\":\"method PUT is not allowed, but [GET] are\"}",
        ),
        (
            "GET /v1/endpoint/abc:def HTTP/1.1",
            "",
            "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: 37\r\n\r\n\
             \"unknown endpoint ID prefix \\\"abc\\\"\"\n",
        ),
        ("GET /v1/identity/notanumber HTTP/1.1", "", "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
        (
            "PATCH /v1/config HTTP/1.1",
            "",
            "HTTP/1.1 422 Unprocessable Entity\r\nContent-Type: application/json\r\nContent-Length: 58\r\n\r\n\
             {\"code\":602,\"message\":\"configuration in body is required\"}",
        ),
        ("GET /v1/map/none HTTP/1.1", "", "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
        (
            "GET /v1/endpoint/cep-name:default/none HTTP/1.1",
            "",
            "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 78\r\n\r\n\
             {\"code\":404,\"message\":\"path /v1/endpoint/cep-name:default/none was not found\"}",
        ),
        (
            "GET /v1/bgp/routes HTTP/1.1",
            "",
            "HTTP/1.1 422 Unprocessable Entity\r\nContent-Type: application/json\r\nContent-Length: 49\r\n\r\n\
             {\"code\":602,\"message\":\"afi in query is required\"}",
        ),
        (
            "GET /v1/bgp/peers HTTP/1.1",
            "",
            "HTTP/1.1 501 Not Implemented\r\nContent-Type: application/json\r\nContent-Length: 32\r\n\r\n\
             \"BGP control plane is disabled\"\n",
        ),
        (
            "GET /v1/prefilter HTTP/1.1",
            "",
            "HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: 37\r\n\r\n\
             \"prefilter is not enabled in daemon\"\n",
        ),
        (
            "GET /v1/lrp HTTP/1.1",
            "",
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n[]\n",
        ),
        (
            "DELETE /v1/endpoint HTTP/1.1",
            "{\"container-id\":\"x\"}",
            "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 22\r\n\r\n\
             \"endpoints not found\"\n",
        ),
    ] {
        assert_eq!(server.ask(request, body).await, answer, "{request}");
    }
    server.end().await;
}

#[tokio::test]
async fn long_bodies_go_in_chunks_and_short_ones_with_their_length() {
    let policy = route(Operation::GetPolicy, |request: Request| async move {
        let length: usize = request.query("length").unwrap_or("0").parse().unwrap();
        Response::json(200, &"x".repeat(length - 3))
    });
    let server = Server::start(&[], vec![policy]).await;
    let short = server.ask("GET /v1/policy?length=2048 HTTP/1.1", "").await;
    assert!(short.contains("Content-Length: 2048\r\n"), "{short:.200}");
    let long = server.ask("GET /v1/policy?length=2049 HTTP/1.1", "").await;
    assert!(long.contains("Transfer-Encoding: chunked\r\n\r\n801\r\n\"xxx"), "{long:.200}");
    assert!(!long.contains("Content-Length"), "{long:.200}");
    assert!(long.ends_with("x\"\n\r\n0\r\n\r\n"));
    server.end().await;
}

#[tokio::test]
async fn bodies_of_wrong_shape_type_and_size_are_refused() {
    let patch = route(Operation::PatchConfig, |request: Request| async move {
        match request.json::<api_models::DaemonConfigurationSpec>() {
            Ok(_) => Response::empty(200),
            Err(answer) => answer,
        }
    });
    let server = Server::start(&[], vec![patch]).await;
    let ask = async |body: &str| {
        let answer = server.ask("PATCH /v1/config HTTP/1.1", body).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        format!("{} {body}", head.split(' ').nth(1).unwrap())
    };
    assert_eq!(ask("{\"options\":{}}").await, "200 ");
    assert_eq!(
        ask("{\"options\":").await,
        "400 {\"code\":400,\"message\":\"parsing configuration body from \\\"\\\" failed, because EOF while parsing a value at line 1 column 11\"}"
    );
    assert_eq!(
        ask("[]").await,
        "400 {\"code\":400,\"message\":\"parsing configuration body from \\\"\\\" failed, because invalid type: sequence, expected an object with options .. policy-enforcement at line 1 column 0\"}"
    );
    assert_eq!(
        ask("{\"policy-enforcement\":\"maybe\"}").await,
        "422 {\"code\":606,\"message\":\"policy-enforcement in body should be one of [default always never]\"}"
    );
    assert_eq!(
        ask(&format!("{{\"options\":{{\"x\":\"{}\"}}}}", "y".repeat(1 << 20))).await,
        "413 {\"code\":413,\"message\":\"request body of more than 1048576 bytes\"}"
    );
    let answer = server
        .send("PATCH /v1/config HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: text/yaml\r\nContent-Length: 2\r\n\r\n{}")
        .await;
    assert!(
        answer.ends_with("{\"code\":415,\"message\":\"unsupported media type \\\"text/yaml\\\", only [application/json] are allowed\"}"),
        "{answer}"
    );
    let answer = server
        .send("GET /v1/config HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: text/html\r\n\r\n")
        .await;
    assert!(
        answer.ends_with("{\"code\":406,\"message\":\"unsupported media type requested, only [application/json] are available\"}"),
        "{answer}"
    );
    server.end().await;
}

#[tokio::test]
async fn denied_operations_are_forbidden() {
    let server = Server::start(&[("enable-cilium-api-server-access", "GetIP,GetPolicy*")], vec![]).await;
    assert!(server.ask("GET /v1/policy HTTP/1.1", "").await.starts_with("HTTP/1.1 200 "));
    assert!(server.ask("GET /v1/policy/selectors HTTP/1.1", "").await.starts_with("HTTP/1.1 200 "));
    assert_eq!(
        server.ask("GET /v1/lrp HTTP/1.1", "").await,
        "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 83\r\n\r\n\
         This API is administratively disabled. Contact your administrator for more details."
    );
    server.end().await;
}

#[tokio::test]
async fn wrong_options_fail_the_start() {
    for (key, value, text) in [
        ("enable-cilium-api-server-access", "GetEverything", "Unknown API flag: \"GetEverything\""),
        ("api-rate-limit", "endpoint-get=fast", "api-rate-limit: unable to parse rate limit option \"fast\""),
    ] {
        let mut hive = TestHive::new([metrics::cell(), api::cell()]).set(key, value);
        let error = hive.try_start().await.unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}

#[tokio::test]
async fn a_request_beyond_the_rate_gets_429_without_a_body() {
    let limit = "endpoint-list=rate-limit:1/h,rate-burst:1,skip-initial:0,max-wait-duration:1s";
    let server = Server::start(&[("api-rate-limit", limit)], vec![]).await;
    assert!(server.ask("GET /v1/endpoint HTTP/1.1", "").await.starts_with("HTTP/1.1 200 OK"));
    assert_eq!(
        server.ask("GET /v1/endpoint HTTP/1.1", "").await,
        "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\n\r\n"
    );
    let metrics = server.hive.get::<metrics::Metrics>().text();
    for line in [
        "cilium_api_limiter_processed_requests_total{api_call=\"endpoint-list\",outcome=\"success\",return_code=\"200\"} 1",
        "cilium_api_limiter_processed_requests_total{api_call=\"endpoint-list\",outcome=\"fail\",return_code=\"429\"} 1",
        "cilium_agent_api_process_time_seconds_count{method=\"GET\",path=\"/v1/endpoint\",return_code=\"429\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} in\n{metrics}");
    }
    server.end().await;
}

#[tokio::test]
async fn many_clients_are_served_at_once_over_kept_connections() {
    let peak = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let seen = peak.clone();
    let slow = route(Operation::GetIP, move |_| {
        let seen = seen.clone();
        async move {
            seen.1.fetch_max(seen.0.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            seen.0.fetch_sub(1, Ordering::SeqCst);
            Response::json(200, &[1, 2, 3])
        }
    });
    let mut server = Server::start(&[], vec![slow]).await;
    let client = async |socket: &PathBuf| {
        let mut stream = UnixStream::connect(socket).await.unwrap();
        for _ in 0..5 {
            stream.write_all(b"GET /v1/ip HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"[1,2,3]\n") {
                assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0);
            }
        }
        stream
    };
    let streams = futures::future::join_all((0..50).map(|_| client(&server.socket))).await;
    assert!(peak.1.load(Ordering::SeqCst) >= 25, "served at once: {:?}", peak.1);
    // Idle connections do not hold up a stop.
    let begin = std::time::Instant::now();
    server.hive.stop().await;
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert!(!server.socket.exists());
    drop(streams);
}

#[tokio::test]
async fn a_handler_completes_when_its_client_disconnects_or_the_agent_stops() {
    let done = Arc::new(AtomicUsize::new(0));
    let count = done.clone();
    let slow = route(Operation::GetIP, move |_| {
        let count = count.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(200)).await;
            count.fetch_add(1, Ordering::SeqCst);
            Response::empty(200)
        }
    });
    let mut server = Server::start(&[], vec![slow]).await;
    let request = b"GET /v1/ip HTTP/1.1\r\nHost: x\r\n\r\n";
    let mut impatient = UnixStream::connect(&server.socket).await.unwrap();
    impatient.write_all(request).await.unwrap();
    let mut patient = UnixStream::connect(&server.socket).await.unwrap();
    patient.write_all(request).await.unwrap();
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(impatient);
    server.hive.stop().await;
    assert_eq!(done.load(Ordering::SeqCst), 2);
    let mut answer = String::new();
    patient.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

#[tokio::test]
async fn a_handler_that_panics_is_answered_with_500_and_the_server_goes_on() {
    let broken = route(Operation::GetIP, |_| async { panic!("broken handler") });
    let server = Server::start(&[], vec![broken]).await;
    for _ in 0..2 {
        let answer = server.ask("GET /v1/ip HTTP/1.1", "").await;
        assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    }
    assert!(server.ask("GET /v1/lrp HTTP/1.1", "").await.starts_with("HTTP/1.1 200 "));
    server.end().await;
}

#[tokio::test]
async fn a_second_agent_on_the_same_socket_is_refused() {
    let server = Server::start(&[], vec![]).await;
    let cells = [metrics::cell(), api::cell()];
    let mut second = TestHive::new(cells).set("socket-path", server.socket.display());
    let error = second.try_start().await.unwrap_err().to_string();
    assert!(error.contains("another agent serves"), "{error}");
    assert!(server.ask("GET /v1/lrp HTTP/1.1", "").await.starts_with("HTTP/1.1 200 "));
    server.end().await;
}

#[tokio::test]
async fn bytes_that_are_not_http_do_not_affect_the_server() {
    let server = Server::start(&[], vec![]).await;
    for bytes in ["\r\n\r\n\r\n", "GET\r\n\r\n", "\u{0}\u{1}\u{2}\r\n\r\n", "GET /v1/ip HTTP/9.9\r\n\r\n"] {
        let mut stream = UnixStream::connect(&server.socket).await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
    }
    assert!(server.ask("GET /v1/lrp HTTP/1.1", "").await.starts_with("HTTP/1.1 200 "));
    server.end().await;
}

#[tokio::test]
async fn debug_information_is_composed_of_operations_and_cells() {
    let status = route(Operation::GetHealthz, |_| async { Response::json(200, &[("cilium", "Ok")]) });
    let endpoints = route(Operation::GetEndpoint, |_| async { Response::json(200, &[1, 2]) });
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("cilium.sock");
    let source = Member(api::DebugSource::new("ipam", || "one \"owner\"\n".to_owned()));
    let cells = [metrics::cell(), api::cell(), supply(Members(vec![status, endpoints])), supply(source)];
    let mut hive = TestHive::new(cells).set("socket-path", socket.display());
    hive.start().await;
    let server = Server { hive, socket, _folder: folder };
    let answer = server.ask("GET /v1/debuginfo HTTP/1.0", "").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.0 200 OK\r\nContent-Type: application/json"), "{head}");
    assert!(body.ends_with("}\n"), "{body}");
    let info: serde_json::Value = serde_json::from_str(body).unwrap();
    let sample = [
        "cilium-memory-map",
        "cilium-status",
        "cilium-version",
        "encryption",
        "endpoint-list",
        "environment-variables",
        "kernel-version",
        "policy",
        "service-list",
        "subsystem",
    ];
    let mut places = Vec::new();
    for name in sample {
        places.push(body.find(&format!("\"{name}\":")).unwrap_or_else(|| panic!("{name} in {body}")));
    }
    assert!(places.is_sorted(), "{places:?}");
    assert_eq!(info.as_object().unwrap().len(), sample.len());
    assert_eq!(info["cilium-status"], serde_json::json!([["cilium", "Ok"]]));
    assert_eq!(info["endpoint-list"], serde_json::json!([1, 2]));
    assert_eq!(info["service-list"], serde_json::json!(null));
    assert_eq!(info["policy"], serde_json::json!({"policy": "[]", "revision": 1}));
    assert_eq!(info["encryption"], serde_json::json!({}));
    assert_eq!(info["subsystem"], serde_json::json!({"ipam": "one \"owner\"\n"}));
    let options = info["environment-variables"].as_array().unwrap();
    assert!(options.contains(&format!("socket-path:{}", server.socket.display()).into()), "{options:?}");
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert!(release.starts_with(info["kernel-version"].as_str().unwrap()));
    server.end().await;
}
