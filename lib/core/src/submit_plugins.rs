//! `JobSubmitPlugins` in the text of slurm.conf. Without job_submit/gpufrac Slurm accepts `gpufrac:25` as a count
//! without a GPU, and nothing else tells such a job from one that needs none.

use crate::slurm_text::each_line;

/// Whether slurm.conf names gpufrac in `JobSubmitPlugins`. `include` reads a file by the name in the text. None if the
/// text does not tell: a file cannot be read, or its name is a pattern.
pub fn name_gpufrac(text: &str, include: &dyn Fn(&str) -> Option<String>) -> Option<bool> {
    let mut found = false;
    // The last line with the key counts.
    each_line(text, include, &mut |line| {
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        if key.trim().eq_ignore_ascii_case("JobSubmitPlugins") {
            let value = value.trim().trim_matches('"');
            let mut plugins = value.split(',').map(str::trim);
            found = plugins.any(|name| matches!(name, "gpufrac" | "job_submit/gpufrac"));
        }
        Some(())
    })?;
    Some(found)
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

    /// Promise (admins): a job that Slurm counts as gpufrac without a GPU does not run, where slurm.conf lost
    /// job_submit/gpufrac.
    /// With `mistakes_of_installation_are_named_and_lose_nothing`.
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
