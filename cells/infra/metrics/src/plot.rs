//! Plots of samples for terminals, drawn with braille dots.

use std::fmt::Write;
use std::time::Duration;

use crate::number::unit;
use crate::sampled::seconds;
use crate::sampler::{KEPT, Ring, Series};

/// Size of the picture in characters, and position of the plot in it.
const WIDTH: usize = 80;
const HEIGHT: usize = 10;
const LEFT: usize = 11;
const BOTTOM: usize = 7;
const PLOT_WIDTH: usize = WIDTH - LEFT - 1;

/// A character of braille holds two columns and four rows of dots.
const DOTS_WIDE: usize = PLOT_WIDTH * 2;
const DOTS_HIGH: usize = BOTTOM * 4;
const BRAILLE: u32 = 0x2800;
const DOTS: [[u32; 4]; 2] = [[0x1, 0x2, 0x4, 0x40], [0x8, 0x10, 0x20, 0x80]];

/// A plot.
pub(crate) struct Plot<'a> {
    pub(crate) title: String,
    pub(crate) name: &'a str,
    pub(crate) labels: &'a str,
    /// The series, for the samples that are present.
    pub(crate) series: &'a Series,
    pub(crate) ring: &'a Ring,
    pub(crate) interval: Duration,
    /// Whether to draw the change per second instead of the values.
    pub(crate) rate: bool,
}

impl Plot<'_> {
    pub(crate) fn draw(mut self) -> String {
        let samples = self.oldest_first();
        let mut text = String::new();
        let indent = " ".repeat(LEFT);
        let centred = |length: usize| " ".repeat((PLOT_WIDTH / 2).saturating_sub(length / 2));
        let _ = writeln!(text, "{indent}{}{}", centred(self.title.len()), self.title);
        if !self.labels.is_empty() {
            for line in wrapped(self.labels, PLOT_WIDTH - 4) {
                let _ = writeln!(text, "{indent}{}[ {line} ]", centred(line.len() + 4));
            }
        }
        let least = samples.iter().copied().fold(f32::INFINITY, f32::min);
        let most = samples.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut canvas = Canvas::new();
        self.frame(&mut canvas, least, most);
        self.dots(&mut canvas, samples, least, most);
        text + &canvas.text()
    }

    /// Returns the samples, or their change per second, the oldest first.
    fn oldest_first(&mut self) -> Ring {
        let mut samples = *self.ring;
        samples.reverse();
        if self.rate {
            let mut before = samples[0];
            for sample in &mut samples {
                (*sample, before) = ((*sample - before) / self.interval.as_secs_f32(), *sample);
            }
            self.title.push_str(" (rate per second)");
        }
        samples
    }

    /// Draws the box and the labels of the axes.
    fn frame(&self, canvas: &mut Canvas, least: f32, most: f32) {
        let (unit, factor) = unit(most.into());
        let value = |value: f32| {
            format!("{:>8} ┤", format!("{:.1}{unit}{}", value * factor as f32, seconds(self.name)))
        };
        let line = "─".repeat(PLOT_WIDTH);
        canvas.write(0, LEFT - 1, &format!("╭{line}╮"));
        for row in 1..=BOTTOM {
            canvas.write(row, LEFT - 1, "│");
            canvas.write(row, WIDTH - 1, "│");
        }
        canvas.write(1, 1, &value(most));
        canvas.write(4, 1, &value((most + least) / 2.0));
        canvas.write(BOTTOM, 1, &value(least));
        canvas.write(BOTTOM + 1, LEFT - 1, &format!("╰{line}╯"));
        let (begin, middle, end) = (LEFT + 3, LEFT + WIDTH / 2 - 5, WIDTH - 3);
        for tick in [begin, middle, end] {
            canvas.write(BOTTOM + 1, tick, "┬");
        }
        let minutes = self.interval.as_secs_f64() * KEPT as f64 / 60.0;
        canvas.write(BOTTOM + 2, begin - 3, &format!("-{minutes:.0}min"));
        canvas.write(BOTTOM + 2, middle - 3, &format!("-{:.0}min", minutes / 2.0));
        canvas.write(BOTTOM + 2, end - 1, "now");
    }

    fn dots(&self, canvas: &mut Canvas, mut samples: Ring, mut least: f32, mut most: f32) {
        if least < 0.0 {
            samples.iter_mut().for_each(|sample| *sample -= least);
            most -= least;
            least = 0.0;
        }
        if most == 0.0 {
            most = 0.000_001;
        }
        let height = |value: f32| (((value - least) / most) * (DOTS_HIGH as f32 - 0.001)) as usize;
        let present = |at: usize| at < KEPT && self.series.present(KEPT - 1 - at);
        let last = KEPT - 1;
        for x in 0..DOTS_WIDE - 1 {
            let place = x as f64 / DOTS_WIDE as f64;
            let at = (last as f64 * place) as usize;
            if !present(at) {
                continue;
            }
            let value = if present(at + 1) {
                let (before, after) = (at as f64 / last as f64, (at + 1) as f64 / last as f64);
                let part = ((place - before) / (after - before)) as f32;
                samples[at] + (samples[at + 1] - samples[at]) * part
            } else {
                samples[at]
            };
            canvas.dot(x, height(value));
        }
        // A single newest sample has no neighbour to interpolate to, so it is drawn here.
        if present(last) {
            canvas.dot(DOTS_WIDE - 1, height(samples[last]));
        }
    }
}

struct Canvas([[char; WIDTH]; HEIGHT]);

impl Canvas {
    fn new() -> Self {
        let mut rows = [[' '; WIDTH]; HEIGHT];
        let blank = char::from_u32(BRAILLE).unwrap_or(' ');
        rows[..=BOTTOM].iter_mut().for_each(|row| row[LEFT..].fill(blank));
        Canvas(rows)
    }

    /// Writes a text, truncated at the right edge.
    fn write(&mut self, row: usize, column: usize, text: &str) {
        for (place, c) in self.0[row][column..].iter_mut().zip(text.chars()) {
            *place = c;
        }
    }

    /// Draws a dot; the origin is the lower left corner.
    fn dot(&mut self, x: usize, y: usize) {
        let y = y.min(DOTS_HIGH - 1);
        let place = &mut self.0[BOTTOM - y / 4][LEFT + x / 2];
        let dots = u32::from(*place) | DOTS[x % 2][(DOTS_HIGH - y - 1) % 4];
        *place = char::from_u32(dots).unwrap_or(*place);
    }

    fn text(&self) -> String {
        self.0.iter().map(|row| row.iter().collect::<String>() + "\n").collect()
    }
}

/// Wraps words into lines of at most `width` characters; a longer word is a line of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = vec![];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected plots are those of Cilium.
    #[test]
    fn plots_are_drawn_to_the_dot() {
        let ring: Ring = std::array::from_fn(|at| ((at * 7) % KEPT) as f32 * 100.0 - 300.0);
        let plot = |present, name: &str, labels, rate| {
            let series = Series::of(ring, present);
            let (title, interval) = (name.to_owned(), Duration::from_secs(30));
            Plot { title, name, labels, series: &series, ring: &ring, interval, rate }.draw()
        };
        let drawn = plot(0x0f_fff3, "a_metric", "a=1", false) + &plot(0x0f_ffff, "b_seconds", "", true);
        assert_eq!(drawn, include_str!("../tests/data/plots.txt"), "{drawn}");
    }

    #[test]
    fn long_labels_take_several_lines() {
        assert_eq!(wrapped("a=1 b=22 c=3", 8), ["a=1 b=22", "c=3"]);
        assert_eq!(wrapped("a=123456789 b=1", 5), ["a=123456789", "b=1"]);
    }

    #[test]
    fn dots_are_counted_from_the_lower_left() {
        let mut canvas = Canvas::new();
        canvas.dot(0, 0);
        canvas.dot(1, 3);
        canvas.dot(DOTS_WIDE - 1, DOTS_HIGH + 5);
        let text = canvas.text();
        let rows: Vec<Vec<char>> = text.lines().map(|line| line.chars().collect()).collect();
        assert_eq!((rows[7][11], rows[1][78]), ('\u{2848}', '\u{2808}'));
    }
}
