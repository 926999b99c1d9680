"""The table of mail."""

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Mail",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("to", models.EmailField(max_length=254)),
                ("text", models.TextField()),
            ],
        )
    ]
