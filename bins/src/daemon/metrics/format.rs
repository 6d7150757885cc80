//! The two text formats of metrics: OpenMetrics 1.0, which the registry writes, and Prometheus 0.0.4.

/// A format and its media type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    OpenMetrics,
    Plain,
}

impl Format {
    /// The format that an `Accept` header prefers. A client that does not ask for OpenMetrics gets the Prometheus text format.
    pub(super) fn accepted(header: &str) -> Self {
        let (mut open, mut plain) = (None, None);
        for range in header.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next();
            let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f64>().ok()).unwrap_or(1.0);
            match kind {
                Some("application/openmetrics-text") => open = Some(quality),
                Some("text/plain") => plain = Some(quality),
                _ => {}
            }
        }
        match (open, plain) {
            (Some(open), plain) if open > 0.0 && open >= plain.unwrap_or(0.0) => Self::OpenMetrics,
            _ => Self::Plain,
        }
    }

    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts the registry's text to this format.
    pub(super) fn of(self, open_metrics: String) -> String {
        match self {
            Self::OpenMetrics => open_metrics,
            Self::Plain => plain(&open_metrics),
        }
    }
}

/// The older format includes the suffix in a counter's name, has no infos or units, and no end marker.
fn plain(open_metrics: &str) -> String {
    let suffix = |name: &str| {
        let is = |kind: &str| open_metrics.contains(&format!("# TYPE {name} {kind}\n"));
        if is("counter") {
            "_total"
        } else if is("info") {
            "_info"
        } else {
            ""
        }
    };
    let mut text = String::with_capacity(open_metrics.len());
    let mut last = (String::new(), "");
    for line in open_metrics.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words.as_slice() {
            ["#", "EOF"] | ["#", "UNIT", ..] => continue,
            ["#", what @ ("HELP" | "TYPE"), name, rest] => {
                // The lines of one family are adjacent: one lookup serves both.
                if last.0 != *name {
                    last = ((*name).to_owned(), suffix(name));
                }
                let rest = if (*what, *rest) == ("TYPE", "info") { "gauge" } else { rest };
                text += &format!("# {what} {name}{} {rest}", last.1);
            }
            _ => text += line,
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_gets_its_preferred_format() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
        assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
        assert_eq!(Format::accepted("application/openmetrics-text"), Format::OpenMetrics);
        for header in ["", "*/*", "text/plain", "text/plain;q=0.9, application/openmetrics-text;q=0.1", "text/html"] {
            assert_eq!(Format::accepted(header), Format::Plain, "{header}");
        }
    }

    #[test]
    fn the_older_format_names_counters_and_infos_whole() {
        let open = "# HELP a_b Things.\n# TYPE a_b counter\na_b_total 3\n# HELP c Facts.\n# TYPE c info\nc_info{x=\"# EOF\"} 1\n\
                    # HELP d Seconds.\n# TYPE d gauge\n# UNIT d seconds\nd 0.5\n# EOF\n";
        let plain = "# HELP a_b_total Things.\n# TYPE a_b_total counter\na_b_total 3\n# HELP c_info Facts.\n# TYPE c_info gauge\n\
                     c_info{x=\"# EOF\"} 1\n# HELP d Seconds.\n# TYPE d gauge\nd 0.5\n";
        assert_eq!(Format::Plain.of(open.to_owned()), plain);
        assert_eq!(Format::OpenMetrics.of(open.to_owned()), open);
    }
}
