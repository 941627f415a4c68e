//! Several config files, of herdlet and of Nomad, merged into one.
//!
//! In: names and bytes of texts, or paths, in order. Later texts override earlier ones; maps and lists are
//! merged. Out: a [`File`] with warnings, or all problems, each in its own text.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use herdlet_base::regular::open_regular;
use herdlet_manifest::yaml::{self, Document, Node, Problem, Problems};

use super::{ConfigError, File, drivers, merge::merged, nomad};

/// Maximum number of files in a directory.
const FILES_MAX: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Yaml,
    /// The language of Nomad's agent files.
    Hcl,
    /// Nomad's agent files in JSON.
    Json,
}

impl Language {
    /// Chooses the language by the extension. JSON is Nomad's.
    fn of(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("hcl") => Self::Hcl,
            Some("json") => Self::Json,
            Some(_) | None => Self::Yaml,
        }
    }
}

/// Texts in the order of increasing precedence.
#[derive(Default)]
pub(super) struct Sources {
    texts: Vec<Text>,
    problems: Problems,
    warnings: Problems,
    has_nomads: bool,
}

/// A text, translated to the names of our config.
struct Text {
    document: Document,
    /// Fields with another name in the text: our path, its path.
    names: Vec<(String, String)>,
}

/// The result of merging all texts.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) file: File,
    /// The merged tree; `None` if there is no text.
    pub(super) tree: Option<Arc<Node>>,
    /// Unused and unknown keys.
    pub(super) warnings: Problems,
    /// Set if at least one text is Nomad's.
    pub(super) has_nomads: bool,
}

impl Sources {
    /// Reads files, and Nomad's files in directories, sorted by name.
    ///
    /// # Errors
    /// The first one that can't be read.
    pub(super) fn read(paths: &[PathBuf], opening: Opening) -> Result<Self, ConfigError> {
        let mut sources = Self::default();
        for path in paths {
            let failed = |path: &Path| {
                let path = path.to_owned();
                |source| ConfigError::Read { path, source }
            };
            if fs::metadata(path).map_err(failed(path))?.is_dir() {
                for path in files_of(path).map_err(failed(path))? {
                    let bytes = read_file(&path, Opening::NeverWaits).map_err(failed(&path))?;
                    sources.add(&path.display().to_string(), &bytes, Language::of(&path));
                }
            } else {
                let bytes = read_file(path, opening).map_err(failed(path))?;
                // A full disk or a failed program leaves such a file; the defaults would be another agent's.
                if bytes.trim_ascii().is_empty() && path.is_file() {
                    let message = "is empty; to use the defaults, put only a comment in it";
                    let source = path.display().to_string();
                    sources.problems.push(Problem {
                        source,
                        line: 0,
                        column: 0,
                        path: String::new(),
                        message: message.to_owned(),
                    });
                    continue;
                }
                sources.add(&path.display().to_string(), &bytes, Language::of(path));
            }
        }
        Ok(sources)
    }

    pub(super) fn add(&mut self, source: &str, bytes: &[u8], language: Language) {
        self.has_nomads |= language != Language::Yaml;
        let text = match language {
            Language::Yaml => self.yaml(source, bytes).map(|document| {
                self.problems.append(drivers::contradictions(&document));
                let (root, names) = drivers::without_alias(&document.root);
                Text { document: Document { root, ..document }, names }
            }),
            Language::Hcl | Language::Json => self.nomads(source, bytes, language),
        };
        let Some(text) = text else { return };
        self.problems
            .append(renamed(yaml::check(&text.document.root(), &yaml::schema_for::<File>()), &text.names));
        let of_drivers = drivers::check(&text.document.source, &text.document.root);
        self.problems.append(renamed(of_drivers, &text.names));
        self.texts.push(text);
    }

    fn yaml(&mut self, source: &str, bytes: &[u8]) -> Option<Document> {
        let yaml::Parsed { documents, problems } = yaml::parse(source, bytes);
        self.problems.append(problems);
        if let Some(second) = documents.get(1) {
            self.problems.push(second.problem("", "begins a second document; a config must be a single one"));
        }
        documents.into_iter().next()
    }

    fn nomads(&mut self, source: &str, bytes: &[u8], language: Language) -> Option<Text> {
        let root = match language {
            Language::Hcl => match nomad::parse(source, bytes) {
                Ok(root) => root,
                Err(problem) => {
                    self.problems.push(problem);
                    return None;
                }
            },
            Language::Yaml | Language::Json => self.yaml(source, bytes)?.root,
        };
        let nomad::Translated { root, names, problems, warnings } = nomad::translate(source, &root);
        self.problems.append(problems);
        self.warnings.append(warnings);
        Some(Text { document: Document { source: source.into(), index: 0, root }, names })
    }

    /// Merges the texts.
    ///
    /// # Errors
    /// All problems of single texts, otherwise those of the merged config.
    pub(super) fn file(mut self) -> Result<Loaded, Problems> {
        self.problems.into_result()?;
        self.problems = Problems::new();
        let trees = self.texts.iter().map(|text| Arc::clone(&text.document.root));
        let Some(tree) = trees.reduce(|earlier, later| merged(&earlier, &later)) else {
            let (warnings, has_nomads) = (self.warnings, self.has_nomads);
            return Ok(Loaded { file: File::default(), tree: None, warnings, has_nomads });
        };
        let source = self.texts.first().map_or("", |text| &text.document.source);
        let place = yaml::Located { source, path: String::new(), node: &tree };
        let file: File = yaml::from_node(&place).map_err(Problems::from)?;
        for (path, message) in file.problems() {
            let problem = self.problem(&path, message);
            self.problems.push(problem);
        }
        for (path, message) in file.warnings() {
            let warning = self.problem(path, message.to_owned());
            self.warnings.push(warning);
        }
        let Self { problems, warnings, has_nomads, .. } = self;
        problems.into_result()?;
        Ok(Loaded { file, tree: Some(tree), warnings, has_nomads })
    }

    /// Returns a problem at a path, in the last text that sets it.
    fn problem(&self, path: &str, message: String) -> Problem {
        let outer = path.split(['.', '[']).next().unwrap_or(path);
        let holds = |path: &str| self.texts.iter().rev().find(|text| text.document.at(path).is_some());
        let text = holds(path).or_else(|| holds(outer)).or_else(|| self.texts.last());
        match text {
            Some(text) => rename(text.document.problem(path, message), &text.names),
            None => Problem { source: String::new(), line: 0, column: 0, path: path.to_owned(), message },
        }
    }
}

/// Whether a file may be a pipe, which waits for its other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// A command line may be `--config <(generate)`.
    MayWait,
    NeverWaits,
}

fn read_file(path: &Path, opening: Opening) -> io::Result<Vec<u8>> {
    match opening {
        Opening::MayWait => fs::read(path),
        Opening::NeverWaits => {
            let mut bytes = Vec::new();
            let file = open_regular(path)?.ok_or_else(|| io::Error::other("it is no regular file"))?;
            io::Read::read_to_end(&mut &file, &mut bytes)?;
            Ok(bytes)
        }
    }
}

/// Lists the files of a directory that Nomad would read, sorted by name.
fn files_of(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_left = name.starts_with('.') || name.ends_with('~') || name.starts_with('#');
        if !is_left && Language::of(&path) != Language::Yaml && path.is_file() {
            files.push(path);
        }
        if files.len() > FILES_MAX {
            return Err(io::Error::other(format!("it contains more than {FILES_MAX} files")));
        }
    }
    if files.is_empty() {
        return Err(io::Error::other("it contains no file that ends in .hcl or .json"));
    }
    files.sort();
    Ok(files)
}

/// Translates problems into the names of the text.
fn renamed(problems: Problems, names: &[(String, String)]) -> Problems {
    let mut all = Problems::new();
    all.extend(problems.into_vec().into_iter().map(|problem| rename(problem, names)));
    all
}

fn rename(mut problem: Problem, names: &[(String, String)]) -> Problem {
    let rest = |ours: &str| {
        problem.path.strip_prefix(ours).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let named = names.iter().filter_map(|(ours, theirs)| Some((ours.len(), theirs, rest(ours)?)));
    if let Some((_, theirs, rest)) = named.max_by_key(|(length, ..)| *length) {
        problem.path = format!("{theirs}{rest}");
    }
    problem
}

impl File {
    /// Reads a config file of ours.
    ///
    /// # Errors
    /// All problems.
    pub fn read(source: &str, bytes: &[u8]) -> Result<Self, Problems> {
        let mut sources = Sources::default();
        sources.add(source, bytes, Language::Yaml);
        Ok(sources.file()?.file)
    }
}
