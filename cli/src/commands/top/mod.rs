//! `top`: which flows, endpoints or drops are most, from the flows of Hubble: live in the terminal, or once for scripts.

mod count;

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use grpc::Connection;
use hubble_api::observer::get_flows_response::ResponseTypes;
use hubble_api::observer::observer_client::ObserverClient;
use hubble_api::observer::{GetFlowsRequest, GetFlowsResponse};
use rustix::termios::tcgetwinsize;

pub(crate) use self::count::{Counts, View, pair, rules};
use crate::client::Agent;
use crate::commands::hubble::{ServerOptions, refused};
use crate::output::{Output, align, printable};

/// Clears the terminal and moves to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J";
/// Lines of a frame beside its rows.
const HEAD: usize = 3;
/// Rows and columns without a terminal.
const ROWS: usize = 20;
const COLUMNS: usize = 200;

#[derive(Debug, Args)]
pub(crate) struct TopOptions {
    /// Count pairs of client and server, endpoints of this node, or drops with the rules that deny
    #[arg(value_enum, default_value_t)]
    view: View,
    /// Count the flows that the server has now, print them and end
    #[arg(long)]
    once: bool,
    /// Seconds between two frames
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Rows of a frame (default: as many as the terminal has, else 20)
    #[arg(short = 'n', long, value_name = "ROWS")]
    rows: Option<usize>,
    #[command(flatten)]
    server: ServerOptions,
    #[command(flatten)]
    output: Output,
}

/// Prints frames until the output is closed, or one of them.
pub(crate) fn run(agent: &Agent, options: &TopOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    let server = options.server.server(agent)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (connection, work) =
            hubble_api::connect(&server).await.context("no flows are served, which enable-hubble does")?;
        tokio::select! {
            biased;
            result = count(connection, options, out) => result,
            _ = work => bail!("the server has closed the connection"),
        }
    })
}

async fn count(connection: Connection, options: &TopOptions, out: &mut dyn Write) -> anyhow::Result<()> {
    // Without a number, all flows that the server has.
    let request = GetFlowsRequest { follow: !options.once, ..GetFlowsRequest::default() };
    // A connection without a client ends with its last response, maybe before that is read.
    let mut observer = ObserverClient::new(connection);
    let mut flows = observer.get_flows(request).await.map_err(refused)?.into_inner();
    let mut counts = Counts::new(options.view);
    if options.once {
        while let Some(response) = flows.message().await.map_err(refused)? {
            add(&mut counts, &response);
        }
        counts.tick();
        return write(&counts, options, None, out);
    }
    let mut timer = tokio::time::interval(Duration::from_secs(options.interval));
    let is_terminal = io::stdout().is_terminal();
    loop {
        tokio::select! {
            _ = timer.tick() => {
                counts.tick();
                let size = is_terminal.then(size);
                write(&counts, options, size, out)?;
            }
            response = flows.message() => match response.map_err(refused)? {
                Some(response) => add(&mut counts, &response),
                None => return Ok(()),
            },
        }
    }
}

/// Counts the flow of a response.
pub(crate) fn add(counts: &mut Counts, response: &GetFlowsResponse) {
    match &response.response_types {
        Some(ResponseTypes::Flow(flow)) => counts.add(flow),
        Some(ResponseTypes::LostEvents(lost)) => counts.lost += lost.num_events_lost,
        Some(ResponseTypes::NodeStatus(_)) | None => {}
    }
}

/// The lines and columns of a terminal.
type Size = (usize, usize);

fn size() -> Size {
    let size = tcgetwinsize(io::stdout()).ok().filter(|size| size.ws_row > 0 && size.ws_col > 0);
    size.map_or((ROWS + HEAD, COLUMNS), |size| (size.ws_row.into(), size.ws_col.into()))
}

fn write(
    counts: &Counts,
    options: &TopOptions,
    size: Option<Size>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let rows = options.rows.unwrap_or_else(|| size.map_or(ROWS, |(lines, _)| lines.saturating_sub(HEAD + 1)));
    if !options.output.write(&counts.json(rows), out)? {
        if size.is_some() {
            out.write_all(CLEAR.as_bytes())?;
        }
        let columns = size.map_or(COLUMNS, |(_, columns)| columns);
        out.write_all(frame(counts, rows, columns).as_bytes())?;
    }
    Ok(out.flush()?)
}

/// Returns a head and a table of so many rows, in lines of so many characters at most.
fn frame(counts: &Counts, rows: usize, columns: usize) -> String {
    let mut names: Vec<String> = counts.view.columns().iter().map(|name| name.to_uppercase()).collect();
    names.extend(["FORWARDED", "DROPPED", "RECENT"].map(str::to_owned));
    if counts.view == View::Drops {
        names.push("RULE".to_owned());
    }
    let mut table = names.join("\t") + "\n";
    for (key, row) in counts.sorted().into_iter().take(rows) {
        // A tab or a line in a name would be another cell.
        let mut cells: Vec<String> = key.iter().map(|text| text.replace(['\t', '\n'], " ")).collect();
        cells.extend([row.forwarded, row.dropped, row.recent].map(|count| count.to_string()));
        if counts.view == View::Drops {
            cells.push(row.rule.replace(['\t', '\n'], " "));
        }
        table += &(cells.join("\t") + "\n");
    }
    let lost = if counts.lost == 0 { String::new() } else { format!(", {} lost", counts.lost) };
    let head = format!("{} flows{lost}, {} rows\n\n", counts.flows, counts.sorted().len());
    let text = printable(&(head + &align(&table, 5)));
    let cut = text.lines().map(|line| line.chars().take(columns).collect::<String>() + "\n");
    cut.collect()
}

#[cfg(test)]
mod tests {
    use hubble_api::flow::{CiliumEventType, Endpoint, Flow, Verdict};

    use super::*;

    #[test]
    fn a_frame_has_no_characters_that_control_the_terminal() {
        let source = Endpoint {
            namespace: "shop".into(),
            pod_name: "we\u{1b}[2Jb\t\n\u{202e}x".into(),
            ..Endpoint::default()
        };
        let flow = Flow {
            verdict: Verdict::Dropped.into(),
            event_type: Some(CiliumEventType { r#type: 1, sub_type: 0 }),
            source: Some(source),
            destination_names: vec!["long.".repeat(100)],
            ..Flow::default()
        };
        let mut counts = Counts::new(View::Drops);
        counts.add(&flow);
        counts.lost = 3;
        counts.tick();
        let text = frame(&counts, 5, 80);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0]), (4, "1 flows, 3 lost, 1 rows"));
        assert!(lines[2].starts_with("REASON"), "{text}");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        assert!(lines[3].contains("shop/we\u{fffd}[2Jb") && !lines[3].contains('\u{1b}'), "{text}");
        assert_eq!(frame(&counts, 0, 80).lines().count(), 3);
    }
}
