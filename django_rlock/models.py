"""A model without a table: locks live in Redis, Django keeps their permissions and their place in the admin."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class Lock(models.Model):
    """One lock, as the admin and its log name it: ``<alias>/<name>``. Never read from a database."""

    id = models.CharField(_("alias and name"), primary_key=True, max_length=1000)

    class Meta:
        managed = False
        default_permissions = ()
        permissions = [
            ("view_lock", "Can view locks, their holders and who waits for them"),
            ("force_release_lock", "Can free a lock that somebody else holds"),
        ]
        verbose_name = _("lock")
        verbose_name_plural = _("locks")

    def __str__(self) -> str:
        return self.id.partition("/")[2]
