//! What a person sees on standard error: refusals with their source line,
//! hints and notes. Colour only adds to words that are there anyway.

use std::io::{IsTerminal, Write};

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use stockade_engine::load::{LayerSource, LoadError};
use stockade_engine::run::Refusal;
use stockade_policy::decide::Denial;
use stockade_policy::path::printable;
use stockade_policy::problem::Problem;

/// Whether colour may be used on standard error (no-color.org).
pub fn is_colourful() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stderr().is_terminal() && !refused
}

/// Writes a line to standard error. A caller who closed it cannot be told.
pub fn line(text: &str) {
    let _closed = writeln!(std::io::stderr(), "{text}").is_err();
}

/// Shows why nothing ran.
pub fn error(error: &anyhow::Error) {
    match error.downcast_ref::<Refusal>() {
        Some(refusal) => self::refusal(refusal),
        None => match error.downcast_ref::<LoadError>() {
            Some(LoadError::Problems { problems, sources }) => self::problems(problems, sources),
            _ => line(&format!("stockade: {error:#}")),
        },
    }
}

fn refusal(refusal: &Refusal) {
    match refusal {
        Refusal::Load(LoadError::Problems { problems, sources }) => {
            self::problems(problems, sources);
            line("stockade: nothing was run");
        }
        Refusal::Unenforceable(items) => {
            for item in items {
                line(&format!("stockade: {item}"));
            }
            line("stockade: nothing was run");
        }
        other => line(&format!("stockade: {other}\nstockade: nothing was run")),
    }
}

/// Shows problems with the lines that they are about.
pub fn problems(problems: &[Problem], sources: &[LayerSource]) {
    let renderer = if is_colourful() {
        Renderer::styled()
    } else {
        Renderer::plain()
    };
    for problem in problems {
        let source = sources
            .iter()
            .find(|source| source.layer.name == problem.layer.name)
            .and_then(|source| std::str::from_utf8(&source.content).ok());
        match (source, &problem.span) {
            (Some(text), Some(span)) if span.end <= text.len() => {
                let snippet = Snippet::source(text)
                    .line_start(1)
                    .path(&problem.layer.name)
                    .annotation(AnnotationKind::Primary.span(span.clone()));
                let mut group =
                    Group::with_title(Level::ERROR.primary_title(&problem.message).id(problem.id))
                        .element(snippet);
                if let Some(help) = &problem.help {
                    group = group.element(Level::HELP.message(help));
                }
                line(&renderer.render(&[group]));
            }
            _ => line(&format!("stockade: {problem}")),
        }
    }
}

/// One line a denial: what, which rule, and how to allow it.
pub fn denial(denial: &Denial) {
    let record = denial.record();
    let object = printable(record.object.as_bytes());
    let how = match denial.remedy() {
        Some(remedy) => format!("to allow it: {}", remedy.replace('\n', " ")),
        None => "no policy of yours can allow it".to_owned(),
    };
    line(&format!(
        "stockade: {object} is not available inside: {} [{}, {}]; {how}",
        denial.reason, denial.rule.id, denial.rule.origin
    ));
}
