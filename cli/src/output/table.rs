//! Elastic tab stops, as in Go's text/tabwriter: a column is as wide as its widest cell among adjacent lines that have
//! it, so that tables equal those of `cilium-dbg` byte by byte.

/// Blanks between a column's widest cell and the next column.
const PADDING: usize = 3;

/// Replaces the tabs of `text` by blanks; a column is at least `minimum` wide. Text after the last tab of a line
/// belongs to no column.
pub(crate) fn align(text: &str, minimum: usize) -> String {
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let mut table = Table { lines: &lines, minimum, widths: Vec::new(), out: String::new() };
    table.block(0, lines.len());
    table.out
}

struct Table<'a> {
    lines: &'a [Vec<&'a str>],
    minimum: usize,
    widths: Vec<usize>,
    out: String,
}

impl Table<'_> {
    /// Aligns the lines `[from, to)`, whose first columns have their widths already.
    fn block(&mut self, mut from: usize, to: usize) {
        let column = self.widths.len();
        let mut line = from;
        while line < to {
            if !self.has(line, column) {
                line += 1;
                continue;
            }
            self.write(from, line);
            from = line;
            let mut width = self.minimum;
            while line < to && self.has(line, column) {
                width = width.max(self.lines[line][column].chars().count() + PADDING);
                line += 1;
            }
            self.widths.push(width);
            self.block(from, line);
            self.widths.pop();
            from = line;
        }
        self.write(from, to);
    }

    /// Whether the line's cell in this column ends with a tab.
    fn has(&self, line: usize, column: usize) -> bool {
        column + 1 < self.lines[line].len()
    }

    fn write(&mut self, from: usize, to: usize) {
        for line in &self.lines[from..to] {
            for (column, cell) in line.iter().enumerate() {
                self.out.push_str(cell);
                if let Some(width) = self.widths.get(column) {
                    self.out.extend(std::iter::repeat_n(' ', width.saturating_sub(cell.chars().count())));
                }
            }
            self.out.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::align;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        assert_eq!(align("a\tb\nlonger\tc\n", 0), "a        b\nlonger   c\n");
        assert_eq!(align("a\tb\n", 5), "a    b\n");
    }

    #[test]
    fn a_line_without_the_column_ends_it() {
        assert_eq!(align("a\tx\nheading\nlonger\ty\n", 2), "a   x\nheading\nlonger   y\n");
    }

    #[test]
    fn empty_cells_and_closing_tabs_keep_their_blanks() {
        assert_eq!(align("\tb\tc\t\naa\t\tdd\t\n", 0), "     b   c    \naa       dd   \n");
    }
}
