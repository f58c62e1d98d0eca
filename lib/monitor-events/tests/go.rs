//! The stream as a Go program reads it, by Go's own decoder.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use monitor_events::gob;
use test_kit::require_command;

/// Prints the values of a stream, and the notification in an event of type 130.
const PROGRAM: &str = r#"package main

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"io"
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
	}
}
"#;

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
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    fs::remove_dir_all(folder).unwrap();
}
