//! Envoy's log in that of the agent.

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};

/// Thread, level, component and text of a line.
pub(crate) const FORMAT: &str = "%t|%l|%n|%v";
/// The longest line: requests of workloads may be part of it.
const MAX_LINE: u64 = 4096;

/// Writes the lines of a stream to the log until it ends.
pub(crate) async fn follow(stream: impl AsyncRead + Unpin) {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        // The rest of a longer line is the next one.
        match (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => write(&String::from_utf8_lossy(&line)),
        }
    }
}

fn write(line: &str) {
    let Line { level, component, text } = Line::parse(line);
    if text.is_empty() {
        return;
    }
    match level {
        tracing::Level::ERROR => tracing::error!(component, text, "Envoy"),
        tracing::Level::WARN => tracing::warn!(component, text, "Envoy"),
        tracing::Level::INFO => tracing::info!(component, text, "Envoy"),
        _ => tracing::debug!(component, text, "Envoy"),
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Line<'a> {
    level: tracing::Level,
    component: &'a str,
    text: &'a str,
}

impl<'a> Line<'a> {
    /// Parses a line. One of another form, such as that of a crash, is a warning.
    fn parse(line: &'a str) -> Line<'a> {
        let line = line.trim_end();
        let parts: Option<[&str; 4]> = line.splitn(4, '|').collect::<Vec<_>>().try_into().ok();
        let level = |name| match name {
            "critical" | "error" => Some(tracing::Level::ERROR),
            "warning" => Some(tracing::Level::WARN),
            "info" => Some(tracing::Level::INFO),
            "debug" | "trace" => Some(tracing::Level::DEBUG),
            _ => None,
        };
        let known = parts.and_then(|[_, name, component, text]| Some((level(name)?, component, text)));
        let (level, component, text) = known.unwrap_or((tracing::Level::WARN, "", line));
        Line { level, component, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_level_component_and_text() {
        let line = |level, component, text| Line { level, component, text };
        use tracing::Level;
        assert_eq!(Line::parse("12|critical|main|no|disk\n"), line(Level::ERROR, "main", "no|disk"));
        assert_eq!(Line::parse("12|warning|config|x"), line(Level::WARN, "config", "x"));
        assert_eq!(Line::parse("12|trace|http|x"), line(Level::DEBUG, "http", "x"));
        assert_eq!(Line::parse("12|odd|http|x"), line(Level::WARN, "", "12|odd|http|x"));
        assert_eq!(Line::parse("Segmentation fault"), line(Level::WARN, "", "Segmentation fault"));
    }
}
