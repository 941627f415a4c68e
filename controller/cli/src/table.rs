//! Small tables: columns as wide as their widest cell, separated by two spaces, without trailing spaces.

/// A table that is being built.
pub(super) struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(columns: &[&str]) -> Self {
        Self { columns: columns.iter().map(|&name| name.to_owned()).collect(), rows: Vec::new() }
    }

    /// Adds a row. Control characters, which could manipulate a terminal, are replaced.
    pub(super) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().map(|cell| plain(&cell)).collect();
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, with an optional heading.
    pub(super) fn render(&self, heading: Heading) -> String {
        self.render_below(heading, &mut Vec::new())
    }

    /// The same, as a continuation of a table with column widths `wide`, which grow as needed.
    pub(super) fn render_below(&self, heading: Heading, wide: &mut Vec<usize>) -> String {
        let heading: Option<Vec<String>> = match heading {
            Heading::Shown => Some(self.columns.clone()),
            Heading::Hidden => None,
        };
        let rows: Vec<&Vec<String>> = heading.iter().chain(&self.rows).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        wide.resize(self.columns.len(), 0);
        wide.iter_mut().enumerate().for_each(|(column, wide)| *wide = width(column).max(*wide));
        let mut text = String::new();
        for row in rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(wide.iter()) {
                let padding = width - cell.chars().count();
                line.push_str(cell);
                line.push_str(&" ".repeat(padding + 2));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heading {
    Shown,
    Hidden,
}

/// A text in one line, without control characters.
pub(super) fn plain(text: &str) -> String {
    if text.chars().any(char::is_control) {
        text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_their_content_without_trailing_spaces() {
        let mut table = Table::new(&["NAME", "STATE"]);
        table.row(["web".to_owned(), "run\u{1b}[31m\nning".to_owned()]);
        table.row(["ünterwegs".to_owned(), String::new()]);
        assert_eq!(table.render(Heading::Shown), "NAME       STATE\nweb        run [31m ning\nünterwegs\n");
        assert_eq!(table.render(Heading::Hidden), "web        run [31m ning\nünterwegs\n");
    }

    #[test]
    fn later_rows_align_with_earlier_ones() {
        let row = |name: &str| {
            let mut table = Table::new(&["NAME", "STATE"]);
            table.row([name.to_owned(), "up".to_owned()]);
            table
        };
        let mut wide = Vec::new();
        assert_eq!(row("web").render_below(Heading::Shown, &mut wide), "NAME  STATE\nweb   up\n");
        assert_eq!(row("database").render_below(Heading::Hidden, &mut wide), "database  up\n");
        assert_eq!(row("a").render_below(Heading::Hidden, &mut wide), "a         up\n");
    }
}
