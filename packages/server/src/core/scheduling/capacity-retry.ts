/** When asking again for capacity may help, seconds: sandboxes come and go in that time. */
export const capacityRetryS = 5;
