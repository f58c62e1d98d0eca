//! The stream as a Go program reads it, by Go's own decoder.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use labels::Label;
use monitor_events::gob;
use monitor_events::record::{
    Contents, DNS_PROXY, DnsRecord, Headers, HttpRecord, ObservationPoint, Party, Record, RecordKind,
    RecordVerdict, access_log,
};
use serde_json::{Value, json};
use test_kit::require_command;

/// Prints the values of a stream, the notification in an event of type 130, and the record in one of type 129.
const PROGRAM: &str = r#"package main

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
)

type Payload struct {
	Data []byte
	CPU  int
	Lost uint64
	Type int
}

type AgentNotify struct {
	Type uint32
	Text string
}

type Label struct{ Key, Value, Source string }

type EndpointInfo struct {
	ID       uint64
	IPv4     string
	IPv6     string
	Port     uint16
	Identity uint64
	Labels   []Label
}

type LogRecord struct {
	Type                string
	Timestamp           string
	NodeAddressInfo     struct{ IPv4, IPv6 string }
	ObservationPoint    string
	SourceEndpoint      EndpointInfo
	DestinationEndpoint EndpointInfo
	IPVersion           uint8
	Verdict             string
	Info                string
	Metadata            []string
	TransportProtocol   uint8
	ServiceInfo         *struct{ Name string }
	HTTP                *struct {
		Code            int
		Method          string
		URL             *url.URL
		Protocol        string
		Headers         map[string][]string
		MissingHeaders  map[string][]string
		RejectedHeaders map[string][]string
	}
	DNS *struct {
		Query             string
		IPs               []netip.Addr
		TTL               uint32
		CNAMEs            []string
		ObservationSource string
		RCode             int
		QTypes            []uint16
		AnswerTypes       []uint16
	}
	L7 *struct {
		Proto  string
		Fields map[string]string
	}
}

func main() {
	dec := gob.NewDecoder(os.Stdin)
	for {
		var p Payload
		if err := dec.Decode(&p); err == io.EOF {
			return
		} else if err != nil {
			panic(err)
		}
		fmt.Printf("%d %d %d %d\n", len(p.Data), p.CPU, p.Lost, p.Type)
		if len(p.Data) > 0 && p.Data[0] == 130 {
			var n AgentNotify
			if err := gob.NewDecoder(bytes.NewReader(p.Data[1:])).Decode(&n); err != nil {
				panic(err)
			}
			fmt.Printf("%d %s\n", n.Type, n.Text)
		}
		if len(p.Data) > 0 && p.Data[0] == 129 {
			var record LogRecord
			if err := gob.NewDecoder(bytes.NewReader(p.Data[1:])).Decode(&record); err != nil {
				panic(err)
			}
			text, err := json.Marshal(record)
			if err != nil {
				panic(err)
			}
			fmt.Printf("%s\n", text)
		}
	}
}
"#;

/// The answer of a server over IPv6.
fn dns_answer() -> Record {
    let pod = Party {
        id: 7,
        address: Some([10, 0, 0, 7].into()),
        port: 40_000,
        identity: 1000,
        labels: vec![Label::parse("k8s:app=web")],
    };
    Record {
        kind: RecordKind::Response,
        timestamp: "2026-11-21T12:05:29.000000001Z".to_owned(),
        node: [String::new(), "fd00::1".to_owned()],
        point: ObservationPoint::Egress,
        source: Party { address: "fd00::53".parse().ok(), port: 53, identity: 2, ..Party::default() },
        destination: pod,
        is_ipv6: false,
        verdict: RecordVerdict::Forwarded,
        info: "Allowed by policy".to_owned(),
        metadata: vec!["rack=1".to_owned()],
        protocol: 17,
        contents: Contents::Dns(DnsRecord {
            query: "a.test.".to_owned(),
            ips: vec![[198, 51, 100, 7].into(), "2001:db8::7".parse().unwrap()],
            ttl: u32::MAX,
            cnames: vec!["b.test.".to_owned()],
            source: DNS_PROXY.to_owned(),
            rcode: 3,
            qtypes: vec![65],
            answer_types: vec![5, 1, 28],
        }),
    }
}

fn http_request() -> Record {
    let http = HttpRecord {
        code: 403,
        method: "GET".to_owned(),
        url: "http://shop.test/a?b=c".to_owned(),
        protocol: "HTTP/1.1".to_owned(),
        headers: Headers::from([("X-A".to_owned(), vec!["1".to_owned(), "2".to_owned()])]),
        ..HttpRecord::default()
    };
    Record { kind: RecordKind::Request, contents: Contents::Http(http), ..dns_answer() }
}

#[test]
fn a_go_program_reads_the_stream() {
    require_command!("go");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("monitor-go-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("main.go"), PROGRAM).unwrap();
    let text = "{\"cidr\":\"10.0.0.0/8\",\"ü\":1}".repeat(20);
    let stream = [
        gob::PREAMBLE.to_vec(),
        gob::sample(0, &[1, 2, 3], &[]),
        gob::sample(300, &[4; 200], &[5; 65_000]),
        gob::lost(1, u64::MAX),
        gob::lost(0, 5),
        gob::sample(0, &gob::agent_notify(9, &text), &[]),
        gob::sample(0, &gob::agent_notify(0, ""), &[]),
        gob::sample(0, &access_log(&dns_answer()), &[]),
        gob::sample(0, &access_log(&http_request()), &[]),
    ];
    fs::write(folder.join("stream"), stream.concat()).unwrap();
    let output = Command::new("go")
        .args(["run", "main.go"])
        .env("GO111MODULE", "off")
        .env("CGO_ENABLED", "0")
        .env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache"))
        .current_dir(&folder)
        .stdin(File::open(folder.join("stream")).unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let notified = gob::agent_notify(9, &text).len();
    let nothing = gob::agent_notify(0, "").len();
    let expected = format!(
        "3 0 0 9\n65200 300 0 9\n0 1 {} 2\n0 0 5 2\n{notified} 0 0 9\n9 {text}\n{nothing} 0 0 9\n0 \n",
        u64::MAX
    );
    let output = String::from_utf8(output.stdout).unwrap();
    let records = output.strip_prefix(&expected).unwrap();
    let records: Vec<Value> = records.lines().skip(1).step_by(2).map(|line| line.parse().unwrap()).collect();
    let [dns, http] = &records[..] else { panic!("{output}") };
    let party = json!({
        "ID": 7, "IPv4": "10.0.0.7", "IPv6": "", "Port": 40_000, "Identity": 1000,
        "Labels": [{"Key": "app", "Value": "web", "Source": "k8s"}],
    });
    assert_eq!(
        (&dns["Type"], &dns["Verdict"], &dns["DestinationEndpoint"]),
        (&json!("Response"), &json!("Forwarded"), &party)
    );
    assert_eq!(
        dns["DNS"],
        json!({
            "Query": "a.test.", "IPs": ["198.51.100.7", "2001:db8::7"], "TTL": u32::MAX, "CNAMEs": ["b.test."],
            "ObservationSource": "proxy", "RCode": 3, "QTypes": [65], "AnswerTypes": [5, 1, 28],
        })
    );
    assert!(dns["HTTP"].is_null() && dns["SourceEndpoint"]["IPv6"] == "fd00::53", "{dns}");
    assert_eq!((&http["HTTP"]["Code"], &http["HTTP"]["URL"]["Host"]), (&json!(403), &json!("shop.test")));
    assert_eq!(http["HTTP"]["Headers"], json!({"X-A": ["1", "2"]}));
    fs::remove_dir_all(folder).unwrap();
}
