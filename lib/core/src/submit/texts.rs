//! The texts of a request, read once.

use super::job::{JobRequest, Occasion};
use super::refusal::{FractionOption, Refusal};
use crate::request::{self, GresForm, Item, Kind};

/// The items of a request, by option.
pub(super) struct Texts<'a> {
    request: JobRequest<'a>,
    per_node: Vec<Item<'a>>,
    per_job: Vec<Item<'a>>,
    per_socket: Vec<Item<'a>>,
    per_task: Vec<Item<'a>>,
}

impl<'a> Texts<'a> {
    /// Reads all texts of a request that can name GRES.
    /// Errors: gpufrac cannot read a text, or Slurm would count something else.
    pub(super) fn read(request: &JobRequest<'a>, occasion: Occasion) -> Result<Self, Refusal> {
        if occasion == Occasion::Modify {
            refuse_what_leaves_counts(request)?;
        }
        let items = |text: Option<&'a str>| {
            let text = text.unwrap_or("");
            request::refuse_misspelt(text)?;
            request::parse(text)
        };
        Ok(Self {
            request: *request,
            per_node: items(request.tres_per_node)?,
            per_job: items(request.tres_per_job)?,
            per_socket: items(request.tres_per_socket)?,
            per_task: items(request.tres_per_task)?,
        })
    }

    /// Refuses texts that Slurm reads in another way. This check comes last, because other mistakes have clearer
    /// messages. `rewritten` is the option whose text gpufrac will write. Errors: the first such text.
    pub(super) fn refuse_ambiguous(
        &self,
        rewritten: Option<FractionOption>,
    ) -> Result<(), Refusal> {
        let JobRequest { form, marked, .. } = self.request;
        for text in self.request.tres() {
            request::refuse_ambiguous(text, form)?;
        }
        let kept = |option, text: Option<&'a str>| text.filter(|_| rewritten != Some(option));
        let kept = [
            kept(FractionOption::Gres, self.request.tres_per_node),
            kept(FractionOption::TresPerTask, self.request.tres_per_task),
        ];
        if marked {
            for text in kept
                .into_iter()
                .flatten()
                .chain(self.request.tres_of_gpus())
            {
                request::refuse_misread(text, form)?;
            }
        }
        Ok(())
    }

    /// The option with the fraction; `--gres` if there is no fraction.
    pub(super) fn option(&self) -> FractionOption {
        if self.per_task.iter().any(is_fraction) {
            FractionOption::TresPerTask
        } else {
            FractionOption::Gres
        }
    }

    pub(super) fn of(&self, option: FractionOption) -> &[Item<'a>] {
        match option {
            FractionOption::Gres => &self.per_node,
            FractionOption::TresPerTask => &self.per_task,
        }
    }

    /// The items of the other options that do not count per node, each with the name of its option.
    pub(super) fn beside(
        &self,
        option: FractionOption,
    ) -> impl Iterator<Item = (&'static str, &Item<'a>)> {
        let per_task = match option {
            FractionOption::Gres => self.per_task.as_slice(),
            FractionOption::TresPerTask => &[],
        };
        let lists = [
            ("--gpus", self.per_job.as_slice()),
            ("--gpus-per-socket", self.per_socket.as_slice()),
            ("--gpus-per-task or --tres-per-task", per_task),
        ];
        lists
            .into_iter()
            .flat_map(|(name, items)| items.iter().map(move |item| (name, item)))
    }
}

fn is_fraction(item: &Item<'_>) -> bool {
    matches!(item.kind, Kind::Gpufrac { .. })
}

/// Refuses an update after which Slurm would still count GRES that the texts of the job no longer name.
fn refuse_what_leaves_counts(request: &JobRequest<'_>) -> Result<(), Refusal> {
    if request.updates_take_counts {
        return Ok(());
    }
    if request.tres().any(|text| counts_nothing(text, request)) {
        return Err(Refusal::CountsStay);
    }
    // `gres_job_state_validate` of 22.05 sets the totals of all GRES of the job to zero, and then sets only those
    // that the update names.
    let per_node = request.tres_per_node.is_some();
    let others = [
        request.tres_per_job,
        request.tres_per_socket,
        request.tres_per_task,
        request.cpus_per_tres,
        request.mem_per_tres,
    ];
    let alone = !per_node && others.iter().any(Option::is_some);
    if request.form == GresForm::Colon && alone {
        Err(Refusal::CountsStay)
    } else {
        Ok(())
    }
}

/// Whether this Slurm counts nothing for any item of a text.
fn counts_nothing(text: &str, request: &JobRequest<'_>) -> bool {
    let nothing = |item: &str| {
        // A fraction will be written with the mark.
        let is_read = item.starts_with(request.form.prefix()) || request::names_fraction(item);
        if request.marked && !is_read {
            return true;
        }
        let last = item.rsplit([':', '=']).next().unwrap_or(item);
        let zero = !last.is_empty() && last.bytes().all(|byte| byte == b'0');
        let body = request::without_mark(item);
        body.is_empty() || zero || body.eq_ignore_ascii_case("none")
    };
    text.split(',').all(nothing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modify(request: &JobRequest<'_>) -> Result<(), Refusal> {
        Texts::read(request, Occasion::Modify).map(|_| ())
    }

    #[test]
    fn an_update_cannot_take_all_counts_away() {
        for form in [GresForm::Colon, GresForm::Slash] {
            for text in [
                "",
                ",",
                "none",
                "gres:none",
                "gres/gpu:0",
                "gres:shard:00",
                "gpu:0,shard:0",
            ] {
                let request = JobRequest {
                    tres_per_node: Some(text),
                    form,
                    ..JobRequest::default()
                };
                assert_eq!(modify(&request), Err(Refusal::CountsStay), "{text:?}");
                let able = JobRequest {
                    updates_take_counts: true,
                    ..request
                };
                assert_ne!(modify(&able), Err(Refusal::CountsStay), "{text:?}");
                let submitted = Texts::read(&request, Occasion::Submit).map(|_| ());
                assert_ne!(submitted, Err(Refusal::CountsStay), "{text:?}");
            }
            let counted = JobRequest {
                tres_per_node: Some("gres:tmpdisk:10"),
                form,
                ..JobRequest::default()
            };
            assert_eq!(modify(&counted), Ok(()));
            let unmarked = JobRequest {
                tres_per_node: Some("tmpdisk:10"),
                marked: true,
                ..counted
            };
            assert_eq!(modify(&unmarked), Err(Refusal::CountsStay));
            let fraction = JobRequest {
                tres_per_node: Some("gpufrac:0.25"),
                ..unmarked
            };
            assert_eq!(modify(&fraction), Ok(()));
            assert_eq!(
                modify(&JobRequest {
                    form,
                    ..JobRequest::default()
                }),
                Ok(())
            );
        }
    }

    #[test]
    fn an_update_of_22_05_names_the_counts_per_node() {
        let alone = JobRequest {
            cpus_per_tres: Some("gres:gpu:2"),
            form: GresForm::Colon,
            ..JobRequest::default()
        };
        assert_eq!(modify(&alone), Err(Refusal::CountsStay));
        let with = JobRequest {
            tres_per_node: Some("gres:gpu:1"),
            ..alone
        };
        assert_eq!(modify(&with), Ok(()));
        let later = JobRequest {
            cpus_per_tres: Some("gres/gpu:2"),
            form: GresForm::Slash,
            ..JobRequest::default()
        };
        assert_eq!(modify(&later), Ok(()));
    }
}
