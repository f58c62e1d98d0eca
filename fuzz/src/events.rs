//! Events of the ring and the monitor's stream: any bytes are printed, without characters that control a terminal.

use monitor_events::gob::{Payload, Reader};
use monitor_events::{Filter, Format, Printer};

const FORMATS: [Format; 4] = [Format::Brief, Format::Verbose, Format::Debug, Format::Json];

fn print(text: Option<String>) {
    let Some(text) = text else { return };
    assert!(text.ends_with('\n'), "{text:?} is a line");
    assert!(
        text.chars().all(|c| matches!(c, '\n' | '\t') || !c.is_control()),
        "{text:?} controls the terminal"
    );
}

/// An even first byte begins an event, an odd one a stream.
pub(crate) fn run(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    let printers = FORMATS.map(|format| Printer { format, hex: first & 2 != 0, ..Printer::default() });
    let filter = Filter::default();
    if first & 1 == 0 {
        printers.iter().for_each(|printer| print(printer.event(data, 0, &filter)));
        return;
    }
    // Pieces of any size give the same values.
    let (mut whole, mut pieces) = (Reader::default(), Reader::default());
    whole.push(data);
    let mut rest = data.chunks(usize::from(first >> 2) + 1);
    loop {
        let value = whole.next_value();
        let same = loop {
            match (pieces.next_value(), rest.next()) {
                (Ok(None), Some(piece)) => pieces.push(piece),
                (value, piece) => {
                    if let Some(piece) = piece {
                        pieces.push(piece);
                    }
                    break value;
                }
            }
        };
        assert_eq!(value, same);
        match value {
            Ok(Some(value)) => {
                let payload = Payload::from(value);
                printers.iter().for_each(|printer| print(printer.payload(&payload, &filter)));
            }
            Ok(None) | Err(_) => return,
        }
    }
}
