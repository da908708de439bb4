//! The cases, by group. Each is a function of a [`Trial`](crate::Trial) and is listed in the table below.

mod access;
mod alone;
mod arguments;
mod bridge;
mod flags;
mod futures;
mod kernels;
mod leases;
mod ledger;
mod lives;
mod local;
mod order;
mod pairs;
mod queues;
mod regions;
mod threads;

use crate::Case;

/// Passes the table of all cases to another macro: this crate's list, or another crate's tests.
#[doc(hidden)]
#[macro_export]
macro_rules! __cases {
    ($($with:tt)*) => {
        $($with)* ! {
            alone {
                a_new_buffer_is_zeroed_or_what_was_given
                explain_says_where_it_lies
                ranges_are_written_read_and_filled
                copies_between_buffers_and_within_one
                transfers_under_way_give_their_vector_back
                a_batch_is_one_hand_over_and_later_writes_win
                maps_are_slices_of_the_newest_contents
                fences_tell_when_the_work_is_done
                two_queues_of_one_device_are_ordered
                memory_is_aligned_for_every_device
                every_hint_and_policy_works
            }
            pairs {
                every_page_is_seen_from_both_sides
                interleaved_kernels_run_in_the_order_of_the_program
                readers_on_both_sides_share
                explain_names_the_route_and_the_sync_method
                three_devices_take_turns
            }
            order {
                random_work_on_every_device_comes_out_as_the_model_says
                random_work_on_a_device_that_shuffles
                two_independent_chains_on_one_queue
                the_steps_of_a_chain_do_not_commute
            }
            queues {
                round_robin_gives_each_queue_its_turn
                least_busy_avoids_a_queue_that_is_held_up
                a_queue_waits_for_a_fence_of_its_own_context
                a_queue_waits_for_a_fence_of_another_device
                profiles_tell_when_a_launch_ran
                a_profile_is_busy_before_the_work_is_done
                warming_up_is_a_launch_that_is_over
                out_of_order_queues_are_there_or_refused
                a_view_that_launched_nothing_hides_nothing
                independent_launches_are_shuffled
            }
            leases {
                a_forgotten_leased_guard_keeps_the_buffer_busy
                a_lease_for_reading_is_none_for_writing
                queues_that_alternate_are_ordered
                a_recalled_guard_is_given_back
                threads_on_one_queue_never_hold_it_both
                a_lent_view_serves_many_launches
            }
            regions {
                two_queues_write_a_half_each
                work_on_a_half_shows_on_its_pages_only
                a_half_does_not_wait_for_the_other
                one_kernel_writes_a_child_and_the_next_reads_another
                what_the_rules_forbid_is_refused_everywhere
                the_strictest_of_the_devices_says_where_a_region_begins
                a_region_written_on_one_device_is_seen_whole_on_the_other
                the_host_reads_writes_fills_and_maps_a_region
            }
            threads {
                hubs_live_side_by_side
                a_buffer_keeps_what_it_needs
                threads_with_buffers_of_their_own_do_not_disturb_each_other
                threads_that_want_one_buffer_get_busy_and_nothing_else
            }
            futures {
                many_trips_on_one_thread
                trips_on_every_device_at_once
                the_same_by_waiting
            }
            kernels {
                elements_of_every_type
                grids_have_one_to_three_dimensions
                loops_end_where_the_device_says
                launches_begin_where_they_are_told_to
                values_of_every_kind_arrive
                local_memory_is_given_per_launch
                address_spaces_go_and_the_rest_stays
            }
            local {
                groups_copy_in_and_out_together
                more_than_a_group_has_is_refused_with_the_numbers
            }
            flags {
                flags_that_exclude_each_other_are_refused
                every_allowed_combination_does_what_it_says
                on_chip_memory_is_refused_with_the_reason
                words_say_the_same_as_flags
                kernels_write_the_callers_own_pages
                misplaced_memory_is_refused_and_given_back
                misplaced_memory_is_used_by_copies_on_request
            }
            ledger {
                a_staged_route_is_counted_to_the_byte
                asked_bytes_are_counted_to_the_byte
                what_is_overwritten_is_not_copied
                what_is_discarded_is_not_copied
                a_proven_route_implies_nothing
                a_proven_route_that_copies_is_counted_and_forbidden
            }
            arguments {
                buffers_and_regions_are_arguments
                a_launch_takes_the_view_that_its_parameter_declares
                a_buffer_that_does_not_fit_is_refused_by_name
                a_device_has_one_default_queue
                typed_kernels_take_what_their_types_say
                more_work_items_than_elements_are_refused
                a_groups_memory_has_an_element_for_each_of_its_items
            }
            access {
                kernels_get_the_access_that_they_declare
                more_than_the_buffer_was_made_for_is_refused
            }
            bridge {
                every_page_arrives_between_every_two_devices
                every_page_arrives_without_waiting
                what_kernels_wrote_is_copied_and_what_was_copied_is_seen_by_kernels
                one_buffer_may_overlap_itself
                many_chunks_arrive_and_overlap
                regions_are_ends_as_well
                host_memory_goes_both_ways
                the_ledger_and_the_report_agree
                what_the_host_sees_is_not_bounced
                two_hubs_meet_through_host_memory
                what_cannot_be_copied_is_refused
            }
            lives {
                every_page_of_every_life
                a_life_that_writes_nothing_is_noticed
                a_short_life_ends_where_it_says
                kernels_see_the_length_of_this_life
            }
        }
    };
}

macro_rules! list {
    ($($group:ident { $($case:ident)* })*) => {
        /// Every case.
        pub const CASES: &[Case] = &[$($(
            Case { name: concat!(stringify!($group), "::", stringify!($case)), run: $group::$case },
        )*)*];
    };
}
__cases!(list);
