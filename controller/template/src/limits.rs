//! Bounds of parsing and rendering. Each ends in an error that names the bound.

/// Bounds of one template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Length of the template's text. Nomad's job files are at most a megabyte.
    pub source_bytes: usize,
    /// Nesting of blocks and parentheses in the text. Bounds the recursion of the parser.
    pub nesting: usize,
    /// Nesting of blocks, template calls and values while rendering. Bounds the recursion of the evaluator.
    pub depth: usize,
    /// Actions, operands and iterations of one render. A million takes about a tenth of a second.
    pub steps: u64,
    /// Length of the output.
    pub output_bytes: usize,
    /// Bytes of all values that one render creates: bounds its memory, and the time within functions.
    pub value_bytes: u64,
    /// Size of a compiled regular expression; also what each different one counts as in `value_bytes`.
    pub regex_bytes: usize,
}

impl Limits {
    pub const DEFAULT: Self = Self {
        source_bytes: 1 << 20,
        nesting: 100,
        depth: 200,
        steps: 2_000_000,
        output_bytes: 16 << 20,
        value_bytes: 128 << 20,
        regex_bytes: 512 << 10,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
