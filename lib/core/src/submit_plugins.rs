//! `JobSubmitPlugins` in the text of slurm.conf. Without job_submit/gpufrac Slurm accepts `gpufrac:25` as a count without a
//! GPU, and nothing else tells such a job from one that needs none.

/// The greatest depth of Include lines that are followed.
const MAX_DEPTH: usize = 4;

/// Whether slurm.conf names gpufrac in `JobSubmitPlugins`. `include` reads a file by the name in the text. None if the text
/// does not tell: a file cannot be read, or its name is a pattern.
#[must_use]
pub fn name_gpufrac(text: &str, include: &dyn Fn(&str) -> Option<String>) -> Option<bool> {
    let mut found = false;
    collect(text, include, MAX_DEPTH, &mut found)?;
    Some(found)
}

/// The last line with the key counts.
fn collect(
    text: &str,
    include: &dyn Fn(&str) -> Option<String>,
    depth: usize,
    found: &mut bool,
) -> Option<()> {
    // A line that ends with a backslash goes on in the next one.
    for line in text.replace("\\\n", " ").lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let (first, rest) = line.split_once([' ', '\t', '=']).unwrap_or((line, ""));
        if first.eq_ignore_ascii_case("include") {
            let file = Some(rest.trim()).filter(|file| !file.contains(['%', '*']))?;
            collect(&include(file)?, include, depth.checked_sub(1)?, found)?;
        } else if first.eq_ignore_ascii_case("JobSubmitPlugins") {
            let value = rest.trim_start_matches(['=', ' ', '\t']);
            let mut plugins = value.trim_matches('"').split(',').map(str::trim);
            *found = plugins.any(|name| matches!(name, "gpufrac" | "job_submit/gpufrac"));
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<bool> {
        name_gpufrac(text, &|file| match file {
            "site.conf" => Some("JobSubmitPlugins=lua,gpufrac\n".to_owned()),
            "empty.conf" => Some(String::new()),
            "again.conf" => Some("include again.conf\n".to_owned()),
            _ => None,
        })
    }

    #[test]
    fn the_plugin_is_found_in_each_spelling_of_the_line() {
        for text in [
            "JobSubmitPlugins=gpufrac\n",
            "jobsubmitplugins = lua,job_submit/gpufrac # ours\n",
            "JobSubmitPlugins=lua, \\\n gpufrac\n",
            "JobSubmitPlugins=lua\nInclude site.conf\n",
        ] {
            assert_eq!(of(text), Some(true), "{text}");
        }
        for text in [
            "",
            "#JobSubmitPlugins=gpufrac\n",
            "JobSubmitPlugins=gpufrac\nJobSubmitPlugins=lua\n",
            "JobSubmitPlugins=gpufrac2\nInclude empty.conf\n",
        ] {
            assert_eq!(of(text), Some(false), "{text}");
        }
        for text in [
            "Include /etc/slurm/*.conf\n",
            "include gone.conf\n",
            "include again.conf\n",
        ] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
